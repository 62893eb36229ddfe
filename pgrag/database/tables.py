"""The tables of a workspace as SQLAlchemy models: alembic's autogenerate check reads them, and so may any program.

They carry no schema. To read a workspace with the ORM, translate it:
`create_engine(url, execution_options={"schema_translate_map": {None: "pgrag"}})`.
"""

from __future__ import annotations

import uuid
from datetime import date, datetime
from decimal import Decimal
from typing import Any

from pgvector.sqlalchemy import HALFVEC
from sqlalchemy import (
    BigInteger,
    CheckConstraint,
    Date,
    DateTime,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    Numeric,
    PrimaryKeyConstraint,
    Text,
    UniqueConstraint,
    Uuid,
    func,
)
from sqlalchemy import text as sql
from sqlalchemy.dialects.postgresql import ARRAY, JSONB, REAL, TSVECTOR
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column, relationship
from sqlalchemy.schema import Identity

HNSW_OPTIONS = {"m": 16, "ef_construction": 64}
VACUUM_OPTIONS = {"autovacuum_vacuum_scale_factor": ".02"}  # what is dead in an index of vectors costs every search


class Base(DeclarativeBase):
    """Parent of all models; constraints get predictable names."""

    metadata = MetaData(
        naming_convention={
            "ix": "%(table_name)s_%(column_0_N_name)s_idx",
            "uq": "%(table_name)s_%(column_0_N_name)s_key",
            "ck": "%(table_name)s_%(constraint_name)s_check",
            "fk": "%(table_name)s_%(column_0_N_name)s_fkey",
            "pk": "%(table_name)s_pkey",
        }
    )
    type_annotation_map = {  # noqa: RUF012 - read by SQLAlchemy, which wants a plain dict
        int: BigInteger,
        str: Text,
        float: REAL,
        datetime: DateTime(timezone=True),
        list[str]: ARRAY(Text),
        dict[str, Any]: JSONB,
    }


def _id() -> Mapped[int]:
    return mapped_column(BigInteger, Identity(always=True), primary_key=True)


def _texts(comment: str) -> Mapped[list[str]]:
    return mapped_column(ARRAY(Text), server_default=sql("'{}'"), comment=comment)


def _now(comment: str) -> Mapped[datetime]:
    return mapped_column(server_default=func.now(), comment=comment)


def _of_vectors(table: str, comment: str) -> tuple[Index, dict[str, Any]]:
    index = Index(
        f"{table}_embedding_idx",
        "embedding",
        postgresql_using="hnsw",
        postgresql_with=HNSW_OPTIONS,
        postgresql_ops={"embedding": "halfvec_cosine_ops"},
    )
    return index, {"postgresql_with": VACUUM_OPTIONS, "comment": comment}


class Meta(Base):
    """What the workspace was made with; one row."""

    __tablename__ = "meta"
    __table_args__ = (
        CheckConstraint("only_row", name="only_row"),
        {"comment": "What the workspace was made with: one row, checked whenever it is opened"},
    )
    only_row: Mapped[bool] = mapped_column(primary_key=True, server_default=sql("true"))
    embedding_model: Mapped[str] = mapped_column(comment="model of every vector in the workspace")
    dimension: Mapped[int] = mapped_column(Integer, comment="length of every vector")
    query_prefix: Mapped[str] = mapped_column(comment="what the model wants before a question")
    passage_prefix: Mapped[str] = mapped_column(comment="what the model wants before a stored text")
    tokenizer: Mapped[str] = mapped_column(comment="tiktoken encoding of every token count")
    folding_version: Mapped[int] = mapped_column(Integer, comment="version of the folding of names and words")
    created_at: Mapped[datetime] = _now("when the workspace was made")


class DocumentRow(Base):
    """A document as ingested."""

    __tablename__ = "document"
    __table_args__ = (
        CheckConstraint("status in ('pending', 'complete', 'failed', 'empty')", name="status"),
        Index(
            "document_metadata_idx", "metadata", postgresql_using="gin", postgresql_ops={"metadata": "jsonb_path_ops"}
        ),
        Index("document_labels_idx", "labels", postgresql_using="gin"),
        Index("document_uri_idx", "uri", postgresql_ops={"uri": "text_pattern_ops"}),
        Index("document_published_at_idx", "published_at"),
        {"comment": "Documents, one row each; body is the whole text that chunks and citations point into"},
    )
    id: Mapped[int] = _id()
    uri: Mapped[str] = mapped_column(unique=True, comment="full address: the key of the document")
    title: Mapped[str] = mapped_column(comment="title found in the text, or empty")
    mime: Mapped[str] = mapped_column(comment="media type of the source")
    sha256: Mapped[str] = mapped_column(comment="hex digest of body, title, labels, metadata and date")
    settings_digest: Mapped[str] = mapped_column(comment="digest of the settings that shaped chunks and extraction")
    metadata_: Mapped[dict[str, Any]] = mapped_column("metadata", server_default=sql("'{}'"), comment="caller's own")
    labels: Mapped[list[str]] = _texts("caller's own")
    body: Mapped[str] = mapped_column(comment="the text; spans count its characters from 0")
    tokens: Mapped[int] = mapped_column(Integer, comment="tokens of all chunks")
    status: Mapped[str] = mapped_column(
        server_default="pending",
        comment="pending: chunks wait; complete; failed: some chunk gave up; empty: no chunk named anything",
    )
    error: Mapped[str | None] = mapped_column(comment="why it failed, or null")
    published_at: Mapped[datetime | None] = mapped_column(comment="date of the content; newer facts are told last")
    created_at: Mapped[datetime] = _now("first ingested")
    updated_at: Mapped[datetime] = _now("last changed")
    chunks: Mapped[list[ChunkRow]] = relationship(back_populates="document", passive_deletes=True)


class ChunkRow(Base):
    """A piece of a document, and the state of the work on it."""

    __tablename__ = "chunk"
    __table_args__ = (
        UniqueConstraint("document_id", "ordinal", deferrable=True),  # ordinals shift in one statement
        CheckConstraint("start_char >= 0 and end_char > start_char", name="span"),
        Index("chunk_sha256_idx", "sha256"),
        Index("chunk_queue_idx", "id", postgresql_where=sql("extracted_at is null")),
        {"comment": "Pieces of documents; where extracted_at is null the piece waits for extraction"},
    )
    id: Mapped[int] = _id()
    document_id: Mapped[int] = mapped_column(ForeignKey("document.id", ondelete="CASCADE"))
    ordinal: Mapped[int] = mapped_column(Integer, comment="place in the document, from 0")
    body: Mapped[str] = mapped_column(comment="the text: characters start_char to end_char of the document's body")
    sha256: Mapped[str] = mapped_column(comment="hex digest of body: equal texts are extracted once")
    start_char: Mapped[int] = mapped_column(Integer, comment="first character in the document, from 0")
    end_char: Mapped[int] = mapped_column(Integer, comment="character after the last")
    page: Mapped[int | None] = mapped_column(Integer, comment="page it starts on, from 1, where the format has pages")
    headings: Mapped[list[str]] = _texts("title and headings above the chunk; read by models before the body")
    tokens: Mapped[int] = mapped_column(Integer, comment="tokens of headings and body")
    keywords: Mapped[list[str]] = _texts("content keywords found by extraction")
    extracted_at: Mapped[datetime | None] = mapped_column(comment="when its facts were stored; null: to do")
    attempts: Mapped[int] = mapped_column(Integer, server_default=sql("0"), comment="failed tries")
    retry_at: Mapped[datetime | None] = mapped_column(comment="not before; infinity: gave up")
    lease_until: Mapped[datetime | None] = mapped_column(comment="a worker holds it until then")
    lease_token: Mapped[uuid.UUID | None] = mapped_column(Uuid, comment="whose lease: results need it")
    error: Mapped[str | None] = mapped_column(comment="last failure")
    document: Mapped[DocumentRow] = relationship(back_populates="chunks")


class ChunkVector(Base):
    """The vector of a chunk's headings and body."""

    __tablename__ = "chunk_vector"
    __table_args__ = _of_vectors("chunk_vector", "Vectors of chunks (headings and body)")
    chunk_id: Mapped[int] = mapped_column(ForeignKey("chunk.id", ondelete="CASCADE"), primary_key=True)
    embedding: Mapped[Any] = mapped_column(HALFVEC())


class ChunkSearch(Base):
    """The words of a chunk; apart from chunk, so that a lease never touches the word index."""

    __tablename__ = "chunk_search"
    __table_args__ = (
        Index("chunk_search_words_idx", "words", postgresql_using="gin"),
        {
            "comment": "Words of chunks (folded by the client) for full-text search",
            "postgresql_with": {"toast_tuple_target": "8160"},
        },
    )
    chunk_id: Mapped[int] = mapped_column(ForeignKey("chunk.id", ondelete="CASCADE"), primary_key=True)
    length: Mapped[int] = mapped_column(Integer, comment="number of words, repeats included")
    words: Mapped[Any] = mapped_column(
        TSVECTOR, comment="the distinct words; the position of a word is how often the chunk says it, at most 16383"
    )


class Lexeme(Base):
    """How many chunks hold a word."""

    __tablename__ = "lexeme"
    __table_args__ = ({"comment": "Words and the number of chunks holding each; the empty word counts all chunks"},)
    word: Mapped[str] = mapped_column(primary_key=True)
    chunks: Mapped[int] = mapped_column(comment="chunks that hold the word")
    occurrences: Mapped[int] = mapped_column(
        server_default=sql("0"), comment="only for the empty word: words of all chunks, repeats included"
    )


class EntityRow(Base):
    """An entity: derived from its mentions, never written by hand."""

    __tablename__ = "entity"
    __table_args__ = ({"comment": "Entities: what all mentions of one thing add up to (derived)"},)
    id: Mapped[int] = _id()
    name: Mapped[str] = mapped_column(comment="the most frequent spelling")
    type: Mapped[str] = mapped_column(server_default="", comment="the most frequent type")
    description: Mapped[str] = mapped_column(server_default="", comment="composed from summary and mentions")
    summary: Mapped[str | None] = mapped_column(comment="what an LLM made of the mentions marked summarised")
    tokens: Mapped[int] = mapped_column(Integer, server_default=sql("0"), comment="tokens of its line in a context")
    degree: Mapped[int] = mapped_column(Integer, server_default=sql("0"), comment="number of relations")
    mentions: Mapped[int] = mapped_column(Integer, server_default=sql("0"), comment="number of chunks naming it")


class EntityAlias(Base):
    """Which entity a normal form names."""

    __tablename__ = "entity_alias"
    __table_args__ = (
        Index("entity_alias_entity_id_idx", "entity_id"),
        Index("entity_alias_key_idx", "key", postgresql_using="gin", postgresql_ops={"key": "gin_trgm_ops"}),
        {"comment": "Normal forms of names and the entity each stands for, the entity's own included"},
    )
    key: Mapped[str] = mapped_column(primary_key=True, comment="normal form of a name")
    entity_id: Mapped[int] = mapped_column(ForeignKey("entity.id", ondelete="CASCADE"))


class MentionRow(Base):
    """What one chunk says of one entity: the source link of entities."""

    __tablename__ = "mention"
    __table_args__ = (
        UniqueConstraint("chunk_id", "key", postgresql_nulls_not_distinct=True, postgresql_include=["entity_id"]),
        Index("mention_entity_id_chunk_id_idx", "entity_id", "chunk_id"),
        {"comment": "What one chunk says of one entity (chunk_id null: written by hand)"},
    )
    id: Mapped[int] = _id()
    chunk_id: Mapped[int | None] = mapped_column(ForeignKey("chunk.id", ondelete="CASCADE"))
    key: Mapped[str] = mapped_column(comment="normal form of the name as extracted; never changed by a merge")
    entity_id: Mapped[int] = mapped_column(ForeignKey("entity.id", ondelete="RESTRICT"))
    name: Mapped[str] = mapped_column(comment="name as written")
    type: Mapped[str] = mapped_column(server_default="")
    description: Mapped[str] = mapped_column(server_default="")
    tokens: Mapped[int] = mapped_column(Integer, server_default=sql("0"), comment="tokens of the description")
    summarised: Mapped[bool] = mapped_column(server_default=sql("false"), comment="part of the LLM's summary")


class FactRow(Base):
    """One statement of a chunk."""

    __tablename__ = "fact"
    __table_args__ = (
        UniqueConstraint("chunk_id", "ordinal"),
        Index("fact_relation_id_chunk_id_idx", "relation_id", "chunk_id"),
        {"comment": "What one chunk states: a triple, or a sentence (chunk_id null: written by hand)"},
    )
    id: Mapped[int] = _id()
    chunk_id: Mapped[int | None] = mapped_column(ForeignKey("chunk.id", ondelete="CASCADE"))
    ordinal: Mapped[int] = mapped_column(Integer, comment="place in the chunk, from 0")
    relation_id: Mapped[int | None] = mapped_column(
        ForeignKey("relation.id", ondelete="SET NULL"), comment="the relation it supports (derived from its entities)"
    )
    text: Mapped[str] = mapped_column()
    context: Mapped[str] = mapped_column(server_default="", comment="put before the text when it is embedded")
    keywords: Mapped[list[str]] = _texts("kinds of relation, themes")
    strength: Mapped[float] = mapped_column(server_default=sql("1"))
    tokens: Mapped[int] = mapped_column(Integer, server_default=sql("0"), comment="tokens of the text")
    summarised: Mapped[bool] = mapped_column(server_default=sql("false"), comment="part of the LLM's summary")


class FactEntity(Base):
    """The part an entity plays in a fact: the source link of relations."""

    __tablename__ = "fact_entity"
    __table_args__ = (
        PrimaryKeyConstraint("fact_id", "key", "role"),
        CheckConstraint("role in ('source', 'target', 'named')", name="role"),
        Index("fact_entity_entity_id_fact_id_idx", "entity_id", "fact_id"),
        {"comment": "Entities of facts, with their part in it"},
    )
    fact_id: Mapped[int] = mapped_column(ForeignKey("fact.id", ondelete="CASCADE"))
    key: Mapped[str] = mapped_column(comment="normal form of the name as extracted; never changed by a merge")
    entity_id: Mapped[int] = mapped_column(ForeignKey("entity.id", ondelete="RESTRICT"))
    role: Mapped[str] = mapped_column(comment="source, target or named")


class RelationRow(Base):
    """An undirected pair of entities: derived from the facts that name both as source and target."""

    __tablename__ = "relation"
    __table_args__ = (
        UniqueConstraint("source", "target"),
        CheckConstraint("source < target", name="order"),
        Index("relation_target_idx", "target"),
        {"comment": "Relations: what all facts between two entities add up to (derived, undirected)"},
    )
    id: Mapped[int] = _id()
    source: Mapped[int] = mapped_column(ForeignKey("entity.id", ondelete="RESTRICT"), comment="the lower entity id")
    target: Mapped[int] = mapped_column(ForeignKey("entity.id", ondelete="RESTRICT"), comment="the higher entity id")
    keywords: Mapped[list[str]] = _texts("keywords of its facts")
    description: Mapped[str] = mapped_column(server_default="", comment="composed from summary and facts")
    summary: Mapped[str | None] = mapped_column(comment="what an LLM made of the facts marked summarised")
    weight: Mapped[float] = mapped_column(server_default=sql("0"), comment="strength summed over distinct chunk texts")
    tokens: Mapped[int] = mapped_column(Integer, server_default=sql("0"), comment="tokens of its line in a context")


class Adjacency(Base):
    """Both directions of every relation, in the order a capped one-hop reads them."""

    __tablename__ = "adjacency"
    __table_args__ = (
        PrimaryKeyConstraint("relation_id", "entity_id"),
        Index(
            "adjacency_hop_idx",
            "entity_id",
            sql("weight desc"),
            "relation_id",
            postgresql_include=["other_id"],
        ),
        {"comment": "Both directions of every relation (derived); a covering index answers one hop"},
    )
    entity_id: Mapped[int] = mapped_column()
    relation_id: Mapped[int] = mapped_column(ForeignKey("relation.id", ondelete="CASCADE"))
    other_id: Mapped[int] = mapped_column()
    weight: Mapped[float] = mapped_column()


class EntityVector(Base):
    """The vector of an entity's name and description."""

    __tablename__ = "entity_vector"
    __table_args__ = _of_vectors("entity_vector", "Vectors of entities (name and description)")
    entity_id: Mapped[int] = mapped_column(ForeignKey("entity.id", ondelete="CASCADE"), primary_key=True)
    embedding: Mapped[Any] = mapped_column(HALFVEC())


class RelationVector(Base):
    """The vector of a relation's keywords, ends and description."""

    __tablename__ = "relation_vector"
    __table_args__ = _of_vectors("relation_vector", "Vectors of relations (keywords, both names, description)")
    relation_id: Mapped[int] = mapped_column(ForeignKey("relation.id", ondelete="CASCADE"), primary_key=True)
    embedding: Mapped[Any] = mapped_column(HALFVEC())


class FactVector(Base):
    """The vector of a fact's text."""

    __tablename__ = "fact_vector"
    __table_args__ = _of_vectors("fact_vector", "Vectors of facts (their own text)")
    fact_id: Mapped[int] = mapped_column(ForeignKey("fact.id", ondelete="CASCADE"), primary_key=True)
    embedding: Mapped[Any] = mapped_column(HALFVEC())


class Stale(Base):
    """What refresh must recompute; its own table, so that nobody waits for a hub's row."""

    __tablename__ = "stale"
    __table_args__ = (
        PrimaryKeyConstraint("kind", "id"),
        CheckConstraint("kind in ('entity', 'relation')", name="kind"),
        {"comment": "Entities and relations whose derived columns and vector wait for refresh"},
    )
    kind: Mapped[str] = mapped_column()
    id: Mapped[int] = mapped_column(BigInteger, autoincrement=False)
    version: Mapped[int] = mapped_column(server_default=sql("1"), comment="grows with every change of the sources")
    lease_until: Mapped[datetime | None] = mapped_column(comment="a worker holds it until then")
    lease_token: Mapped[uuid.UUID | None] = mapped_column(Uuid, comment="whose lease")


class LlmCache(Base):
    """A response of a model, kept so that nothing is asked twice."""

    __tablename__ = "llm_cache"
    __table_args__ = (
        Index(
            "llm_cache_purpose_idx", "purpose", postgresql_where=sql("purpose in ('answer', 'keywords', 'evaluate')")
        ),
        {"comment": "Responses of language models: nothing is asked or paid for twice"},
    )
    key: Mapped[str] = mapped_column(primary_key=True, comment="hex sha256 of purpose, model, prompt digest and input")
    purpose: Mapped[str] = mapped_column()
    model: Mapped[str] = mapped_column()
    response: Mapped[str] = mapped_column()
    prompt_tokens: Mapped[int] = mapped_column(server_default=sql("0"))
    completion_tokens: Mapped[int] = mapped_column(server_default=sql("0"))
    cost: Mapped[Decimal] = mapped_column(Numeric, server_default=sql("0"), comment="US dollars")
    created_at: Mapped[datetime] = _now("when it was paid for")


class LlmCacheSource(Base):
    """Which chunks a cached response was made from: it goes when they go."""

    __tablename__ = "llm_cache_source"
    __table_args__ = (
        PrimaryKeyConstraint("cache_key", "chunk_id"),
        Index("llm_cache_source_chunk_id_idx", "chunk_id"),
        {"comment": "Chunks whose text went into a cached response"},
    )
    cache_key: Mapped[str] = mapped_column(ForeignKey("llm_cache.key", ondelete="CASCADE"))
    chunk_id: Mapped[int] = mapped_column(ForeignKey("chunk.id", ondelete="CASCADE"))


class LlmUsage(Base):
    """What was paid for, by purpose, model, document and day."""

    __tablename__ = "llm_usage"
    __table_args__ = (
        UniqueConstraint("purpose", "model", "document_id", "day", postgresql_nulls_not_distinct=True),
        {"comment": "Tokens and cost of model calls per purpose, model, document and day"},
    )
    id: Mapped[int] = _id()
    purpose: Mapped[str] = mapped_column()
    model: Mapped[str] = mapped_column()
    document_id: Mapped[int | None] = mapped_column(comment="document paid for; it may be gone since")
    day: Mapped[date] = mapped_column(Date, server_default=sql("current_date"))
    calls: Mapped[int] = mapped_column(server_default=sql("0"))
    prompt_tokens: Mapped[int] = mapped_column(server_default=sql("0"))
    completion_tokens: Mapped[int] = mapped_column(server_default=sql("0"))
    cost: Mapped[Decimal] = mapped_column(Numeric, server_default=sql("0"), comment="US dollars")
