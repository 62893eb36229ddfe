"""The tables of a workspace."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import context, op
from alembic.util import CommandError
from pgvector.sqlalchemy import HALFVEC
from sqlalchemy.dialects import postgresql as pg

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def create_vector_index(table: str) -> None:
    """HNSW by cosine."""
    op.create_index(
        f"{table}_embedding_idx",
        table,
        ["embedding"],
        postgresql_using="hnsw",
        postgresql_with={"m": 16, "ef_construction": 64},
        postgresql_ops={"embedding": "halfvec_cosine_ops"},
    )


def upgrade() -> None:
    """Runs with search_path = the workspace's schema, then the extensions'. Imports nothing of pgrag, reads no sql/."""
    dimension = int(context.config.attributes["dimension"])
    op.execute("comment on table alembic_version is 'Revision of the tables of this workspace'")

    op.create_table(
        "meta",
        sa.Column("only_row", sa.Boolean(), server_default=sa.text("true")),
        sa.Column("embedding_model", sa.Text(), nullable=False, comment="model of every vector in the workspace"),
        sa.Column("dimension", sa.Integer(), nullable=False, comment="length of every vector"),
        sa.Column("query_prefix", sa.Text(), nullable=False, comment="what the model wants before a question"),
        sa.Column("passage_prefix", sa.Text(), nullable=False, comment="what the model wants before a stored text"),
        sa.Column("tokenizer", sa.Text(), nullable=False, comment="tiktoken encoding of every token count"),
        sa.Column("folding_version", sa.Integer(), nullable=False, comment="version of the folding of names and words"),
        sa.Column(
            "created_at",
            sa.DateTime(timezone=True),
            server_default=sa.func.now(),
            nullable=False,
            comment="when the workspace was made",
        ),
        sa.PrimaryKeyConstraint("only_row", name=op.f("meta_pkey")),
        sa.CheckConstraint("only_row", name=op.f("meta_only_row_check")),
        comment="What the workspace was made with: one row, checked whenever it is opened",
    )

    op.create_table(
        "document",
        sa.Column("id", sa.BigInteger(), sa.Identity(always=True)),
        sa.Column("uri", sa.Text(), nullable=False, comment="full address: the key of the document"),
        sa.Column("title", sa.Text(), nullable=False, comment="title found in the text, or empty"),
        sa.Column("mime", sa.Text(), nullable=False, comment="media type of the source"),
        sa.Column("sha256", sa.Text(), nullable=False, comment="hex digest of body, title, labels, metadata and date"),
        sa.Column(
            "settings_digest",
            sa.Text(),
            nullable=False,
            comment="digest of the settings that shaped chunks and extraction",
        ),
        sa.Column("metadata", pg.JSONB(), server_default=sa.text("'{}'"), nullable=False, comment="caller's own"),
        sa.Column(
            "labels", pg.ARRAY(sa.Text()), server_default=sa.text("'{}'"), nullable=False, comment="caller's own"
        ),
        sa.Column("body", sa.Text(), nullable=False, comment="the text; spans count its characters from 0"),
        sa.Column("tokens", sa.Integer(), nullable=False, comment="tokens of all chunks"),
        sa.Column(
            "status",
            sa.Text(),
            server_default="pending",
            nullable=False,
            comment="pending: chunks wait; complete; failed: some chunk gave up; empty: no chunk named anything",
        ),
        sa.Column("error", sa.Text(), comment="why it failed, or null"),
        sa.Column("published_at", sa.DateTime(timezone=True), comment="date of the content; newer facts are told last"),
        sa.Column(
            "created_at",
            sa.DateTime(timezone=True),
            server_default=sa.func.now(),
            nullable=False,
            comment="first ingested",
        ),
        sa.Column(
            "updated_at",
            sa.DateTime(timezone=True),
            server_default=sa.func.now(),
            nullable=False,
            comment="last changed",
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("document_pkey")),
        sa.UniqueConstraint("uri", name=op.f("document_uri_key")),
        sa.CheckConstraint("status in ('pending', 'complete', 'failed', 'empty')", name=op.f("document_status_check")),
        comment="Documents, one row each; body is the whole text that chunks and citations point into",
    )
    op.create_index("document_labels_idx", "document", ["labels"], postgresql_using="gin")
    op.create_index(
        "document_metadata_idx",
        "document",
        ["metadata"],
        postgresql_using="gin",
        postgresql_ops={"metadata": "jsonb_path_ops"},
    )
    op.create_index("document_uri_idx", "document", ["uri"], postgresql_ops={"uri": "text_pattern_ops"})
    op.create_index("document_published_at_idx", "document", ["published_at"])

    op.create_table(
        "chunk",
        sa.Column("id", sa.BigInteger(), sa.Identity(always=True)),
        sa.Column("document_id", sa.BigInteger(), nullable=False),
        sa.Column("ordinal", sa.Integer(), nullable=False, comment="place in the document, from 0"),
        sa.Column(
            "body",
            sa.Text(),
            nullable=False,
            comment="the text: characters start_char to end_char of the document's body",
        ),
        sa.Column("sha256", sa.Text(), nullable=False, comment="hex digest of body: equal texts are extracted once"),
        sa.Column("start_char", sa.Integer(), nullable=False, comment="first character in the document, from 0"),
        sa.Column("end_char", sa.Integer(), nullable=False, comment="character after the last"),
        sa.Column("page", sa.Integer(), comment="page it starts on, from 1, where the format has pages"),
        sa.Column(
            "headings",
            pg.ARRAY(sa.Text()),
            server_default=sa.text("'{}'"),
            nullable=False,
            comment="title and headings above the chunk; read by models before the body",
        ),
        sa.Column("tokens", sa.Integer(), nullable=False, comment="tokens of headings and body"),
        sa.Column(
            "keywords",
            pg.ARRAY(sa.Text()),
            server_default=sa.text("'{}'"),
            nullable=False,
            comment="content keywords found by extraction",
        ),
        sa.Column("extracted_at", sa.DateTime(timezone=True), comment="when its facts were stored; null: to do"),
        sa.Column("attempts", sa.Integer(), server_default=sa.text("0"), nullable=False, comment="failed tries"),
        sa.Column("retry_at", sa.DateTime(timezone=True), comment="not before; infinity: gave up"),
        sa.Column("lease_until", sa.DateTime(timezone=True), comment="a worker holds it until then"),
        sa.Column("lease_token", sa.Uuid(), comment="whose lease: results need it"),
        sa.Column("error", sa.Text(), comment="last failure"),
        sa.PrimaryKeyConstraint("id", name=op.f("chunk_pkey")),
        sa.UniqueConstraint("document_id", "ordinal", name=op.f("chunk_document_id_ordinal_key"), deferrable=True),
        sa.CheckConstraint("start_char >= 0 and end_char > start_char", name=op.f("chunk_span_check")),
        sa.ForeignKeyConstraint(
            ["document_id"], ["document.id"], name=op.f("chunk_document_id_fkey"), ondelete="CASCADE"
        ),
        comment="Pieces of documents; where extracted_at is null the piece waits for extraction",
    )
    op.create_index("chunk_queue_idx", "chunk", ["id"], postgresql_where=sa.text("extracted_at is null"))
    op.create_index("chunk_sha256_idx", "chunk", ["sha256"])

    op.create_table(
        "chunk_vector",
        sa.Column("chunk_id", sa.BigInteger(), autoincrement=False),
        sa.Column("embedding", HALFVEC(dimension), nullable=False),
        sa.PrimaryKeyConstraint("chunk_id", name=op.f("chunk_vector_pkey")),
        sa.ForeignKeyConstraint(
            ["chunk_id"], ["chunk.id"], name=op.f("chunk_vector_chunk_id_fkey"), ondelete="CASCADE"
        ),
        comment="Vectors of chunks (headings and body)",
    )
    create_vector_index("chunk_vector")

    op.create_table(
        "chunk_search",
        sa.Column("chunk_id", sa.BigInteger(), autoincrement=False),
        sa.Column("length", sa.Integer(), nullable=False, comment="number of words, repeats included"),
        sa.Column(
            "words",
            pg.TSVECTOR(),
            nullable=False,
            comment="the distinct words; the position of a word is how often the chunk says it, at most 16383",
        ),
        sa.PrimaryKeyConstraint("chunk_id", name=op.f("chunk_search_pkey")),
        sa.ForeignKeyConstraint(
            ["chunk_id"], ["chunk.id"], name=op.f("chunk_search_chunk_id_fkey"), ondelete="CASCADE"
        ),
        comment="Words of chunks (folded by the client) for full-text search",
    )
    op.execute("alter table chunk_search set (toast_tuple_target = 8160)")
    op.create_index("chunk_search_words_idx", "chunk_search", ["words"], postgresql_using="gin")

    op.create_table(
        "lexeme",
        sa.Column("word", sa.Text()),
        sa.Column("chunks", sa.BigInteger(), nullable=False, comment="chunks that hold the word"),
        sa.Column(
            "occurrences",
            sa.BigInteger(),
            server_default=sa.text("0"),
            nullable=False,
            comment="only for the empty word: words of all chunks, repeats included",
        ),
        sa.PrimaryKeyConstraint("word", name=op.f("lexeme_pkey")),
        comment="Words and the number of chunks holding each; the empty word counts all chunks",
    )

    op.create_table(
        "entity",
        sa.Column("id", sa.BigInteger(), sa.Identity(always=True)),
        sa.Column("name", sa.Text(), nullable=False, comment="the most frequent spelling"),
        sa.Column("type", sa.Text(), server_default="", nullable=False, comment="the most frequent type"),
        sa.Column(
            "description", sa.Text(), server_default="", nullable=False, comment="composed from summary and mentions"
        ),
        sa.Column("summary", sa.Text(), comment="what an LLM made of the mentions marked summarised"),
        sa.Column(
            "tokens",
            sa.Integer(),
            server_default=sa.text("0"),
            nullable=False,
            comment="tokens of its line in a context",
        ),
        sa.Column("degree", sa.Integer(), server_default=sa.text("0"), nullable=False, comment="number of relations"),
        sa.Column(
            "mentions", sa.Integer(), server_default=sa.text("0"), nullable=False, comment="number of chunks naming it"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("entity_pkey")),
        comment="Entities: what all mentions of one thing add up to (derived)",
    )

    op.create_table(
        "entity_alias",
        sa.Column("key", sa.Text(), comment="normal form of a name"),
        sa.Column("entity_id", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("key", name=op.f("entity_alias_pkey")),
        sa.ForeignKeyConstraint(
            ["entity_id"], ["entity.id"], name=op.f("entity_alias_entity_id_fkey"), ondelete="CASCADE"
        ),
        comment="Normal forms of names and the entity each stands for, the entity's own included",
    )
    op.create_index("entity_alias_entity_id_idx", "entity_alias", ["entity_id"])
    op.create_index(
        "entity_alias_key_idx", "entity_alias", ["key"], postgresql_using="gin", postgresql_ops={"key": "gin_trgm_ops"}
    )

    op.create_table(
        "mention",
        sa.Column("id", sa.BigInteger(), sa.Identity(always=True)),
        sa.Column("chunk_id", sa.BigInteger()),
        sa.Column(
            "key", sa.Text(), nullable=False, comment="normal form of the name as extracted; never changed by a merge"
        ),
        sa.Column("entity_id", sa.BigInteger(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False, comment="name as written"),
        sa.Column("type", sa.Text(), server_default="", nullable=False),
        sa.Column("description", sa.Text(), server_default="", nullable=False),
        sa.Column(
            "tokens", sa.Integer(), server_default=sa.text("0"), nullable=False, comment="tokens of the description"
        ),
        sa.Column(
            "summarised",
            sa.Boolean(),
            server_default=sa.text("false"),
            nullable=False,
            comment="part of the LLM's summary",
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("mention_pkey")),
        sa.UniqueConstraint(
            "chunk_id",
            "key",
            name=op.f("mention_chunk_id_key_key"),
            postgresql_nulls_not_distinct=True,
            postgresql_include=["entity_id"],
        ),
        sa.ForeignKeyConstraint(["chunk_id"], ["chunk.id"], name=op.f("mention_chunk_id_fkey"), ondelete="CASCADE"),
        sa.ForeignKeyConstraint(["entity_id"], ["entity.id"], name=op.f("mention_entity_id_fkey"), ondelete="RESTRICT"),
        comment="What one chunk says of one entity (chunk_id null: written by hand)",
    )
    op.create_index("mention_entity_id_chunk_id_idx", "mention", ["entity_id", "chunk_id"])

    op.create_table(
        "relation",
        sa.Column("id", sa.BigInteger(), sa.Identity(always=True)),
        sa.Column("source", sa.BigInteger(), nullable=False, comment="the lower entity id"),
        sa.Column("target", sa.BigInteger(), nullable=False, comment="the higher entity id"),
        sa.Column(
            "keywords",
            pg.ARRAY(sa.Text()),
            server_default=sa.text("'{}'"),
            nullable=False,
            comment="keywords of its facts",
        ),
        sa.Column(
            "description", sa.Text(), server_default="", nullable=False, comment="composed from summary and facts"
        ),
        sa.Column("summary", sa.Text(), comment="what an LLM made of the facts marked summarised"),
        sa.Column(
            "weight",
            sa.REAL(),
            server_default=sa.text("0"),
            nullable=False,
            comment="strength summed over distinct chunk texts",
        ),
        sa.Column(
            "tokens",
            sa.Integer(),
            server_default=sa.text("0"),
            nullable=False,
            comment="tokens of its line in a context",
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("relation_pkey")),
        sa.UniqueConstraint("source", "target", name=op.f("relation_source_target_key")),
        sa.CheckConstraint("source < target", name=op.f("relation_order_check")),
        sa.ForeignKeyConstraint(["source"], ["entity.id"], name=op.f("relation_source_fkey"), ondelete="RESTRICT"),
        sa.ForeignKeyConstraint(["target"], ["entity.id"], name=op.f("relation_target_fkey"), ondelete="RESTRICT"),
        comment="Relations: what all facts between two entities add up to (derived, undirected)",
    )
    op.create_index("relation_target_idx", "relation", ["target"])

    op.create_table(
        "fact",
        sa.Column("id", sa.BigInteger(), sa.Identity(always=True)),
        sa.Column("chunk_id", sa.BigInteger()),
        sa.Column("ordinal", sa.Integer(), nullable=False, comment="place in the chunk, from 0"),
        sa.Column("relation_id", sa.BigInteger(), comment="the relation it supports (derived from its entities)"),
        sa.Column("text", sa.Text(), nullable=False),
        sa.Column(
            "context", sa.Text(), server_default="", nullable=False, comment="put before the text when it is embedded"
        ),
        sa.Column(
            "keywords",
            pg.ARRAY(sa.Text()),
            server_default=sa.text("'{}'"),
            nullable=False,
            comment="kinds of relation, themes",
        ),
        sa.Column("strength", sa.REAL(), server_default=sa.text("1"), nullable=False),
        sa.Column("tokens", sa.Integer(), server_default=sa.text("0"), nullable=False, comment="tokens of the text"),
        sa.Column(
            "summarised",
            sa.Boolean(),
            server_default=sa.text("false"),
            nullable=False,
            comment="part of the LLM's summary",
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("fact_pkey")),
        sa.UniqueConstraint("chunk_id", "ordinal", name=op.f("fact_chunk_id_ordinal_key")),
        sa.ForeignKeyConstraint(["chunk_id"], ["chunk.id"], name=op.f("fact_chunk_id_fkey"), ondelete="CASCADE"),
        sa.ForeignKeyConstraint(
            ["relation_id"], ["relation.id"], name=op.f("fact_relation_id_fkey"), ondelete="SET NULL"
        ),
        comment="What one chunk states: a triple, or a sentence (chunk_id null: written by hand)",
    )
    op.create_index("fact_relation_id_chunk_id_idx", "fact", ["relation_id", "chunk_id"])

    op.create_table(
        "fact_entity",
        sa.Column("fact_id", sa.BigInteger()),
        sa.Column("key", sa.Text(), comment="normal form of the name as extracted; never changed by a merge"),
        sa.Column("entity_id", sa.BigInteger(), nullable=False),
        sa.Column("role", sa.Text(), comment="source, target or named"),
        sa.PrimaryKeyConstraint("fact_id", "key", "role", name=op.f("fact_entity_pkey")),
        sa.CheckConstraint("role in ('source', 'target', 'named')", name=op.f("fact_entity_role_check")),
        sa.ForeignKeyConstraint(
            ["entity_id"], ["entity.id"], name=op.f("fact_entity_entity_id_fkey"), ondelete="RESTRICT"
        ),
        sa.ForeignKeyConstraint(["fact_id"], ["fact.id"], name=op.f("fact_entity_fact_id_fkey"), ondelete="CASCADE"),
        comment="Entities of facts, with their part in it",
    )
    op.create_index("fact_entity_entity_id_fact_id_idx", "fact_entity", ["entity_id", "fact_id"])

    op.create_table(
        "adjacency",
        sa.Column("entity_id", sa.BigInteger()),
        sa.Column("relation_id", sa.BigInteger()),
        sa.Column("other_id", sa.BigInteger(), nullable=False),
        sa.Column("weight", sa.REAL(), nullable=False),
        sa.PrimaryKeyConstraint("relation_id", "entity_id", name=op.f("adjacency_pkey")),
        sa.ForeignKeyConstraint(
            ["relation_id"], ["relation.id"], name=op.f("adjacency_relation_id_fkey"), ondelete="CASCADE"
        ),
        comment="Both directions of every relation (derived); a covering index answers one hop",
    )
    op.create_index(
        "adjacency_hop_idx",
        "adjacency",
        ["entity_id", sa.text("weight desc"), "relation_id"],
        postgresql_include=["other_id"],
    )

    op.create_table(
        "entity_vector",
        sa.Column("entity_id", sa.BigInteger(), autoincrement=False),
        sa.Column("embedding", HALFVEC(dimension), nullable=False),
        sa.PrimaryKeyConstraint("entity_id", name=op.f("entity_vector_pkey")),
        sa.ForeignKeyConstraint(
            ["entity_id"], ["entity.id"], name=op.f("entity_vector_entity_id_fkey"), ondelete="CASCADE"
        ),
        comment="Vectors of entities (name and description)",
    )
    create_vector_index("entity_vector")

    op.create_table(
        "relation_vector",
        sa.Column("relation_id", sa.BigInteger(), autoincrement=False),
        sa.Column("embedding", HALFVEC(dimension), nullable=False),
        sa.PrimaryKeyConstraint("relation_id", name=op.f("relation_vector_pkey")),
        sa.ForeignKeyConstraint(
            ["relation_id"], ["relation.id"], name=op.f("relation_vector_relation_id_fkey"), ondelete="CASCADE"
        ),
        comment="Vectors of relations (keywords, both names, description)",
    )
    create_vector_index("relation_vector")

    op.create_table(
        "fact_vector",
        sa.Column("fact_id", sa.BigInteger(), autoincrement=False),
        sa.Column("embedding", HALFVEC(dimension), nullable=False),
        sa.PrimaryKeyConstraint("fact_id", name=op.f("fact_vector_pkey")),
        sa.ForeignKeyConstraint(["fact_id"], ["fact.id"], name=op.f("fact_vector_fact_id_fkey"), ondelete="CASCADE"),
        comment="Vectors of facts (their own text)",
    )
    create_vector_index("fact_vector")

    op.create_table(
        "stale",
        sa.Column("kind", sa.Text()),
        sa.Column("id", sa.BigInteger()),
        sa.Column(
            "version",
            sa.BigInteger(),
            server_default=sa.text("1"),
            nullable=False,
            comment="grows with every change of the sources",
        ),
        sa.Column("lease_until", sa.DateTime(timezone=True), comment="a worker holds it until then"),
        sa.Column("lease_token", sa.Uuid(), comment="whose lease"),
        sa.PrimaryKeyConstraint("kind", "id", name=op.f("stale_pkey")),
        sa.CheckConstraint("kind in ('entity', 'relation')", name=op.f("stale_kind_check")),
        comment="Entities and relations whose derived columns and vector wait for refresh",
    )

    op.create_table(
        "llm_cache",
        sa.Column("key", sa.Text(), comment="hex sha256 of purpose, model, prompt digest and input"),
        sa.Column("purpose", sa.Text(), nullable=False),
        sa.Column("model", sa.Text(), nullable=False),
        sa.Column("response", sa.Text(), nullable=False),
        sa.Column("prompt_tokens", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("completion_tokens", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("cost", sa.Numeric(), server_default=sa.text("0"), nullable=False, comment="US dollars"),
        sa.Column(
            "created_at",
            sa.DateTime(timezone=True),
            server_default=sa.func.now(),
            nullable=False,
            comment="when it was paid for",
        ),
        sa.PrimaryKeyConstraint("key", name=op.f("llm_cache_pkey")),
        comment="Responses of language models: nothing is asked or paid for twice",
    )

    op.create_table(
        "llm_cache_source",
        sa.Column("cache_key", sa.Text()),
        sa.Column("chunk_id", sa.BigInteger()),
        sa.PrimaryKeyConstraint("cache_key", "chunk_id", name=op.f("llm_cache_source_pkey")),
        sa.ForeignKeyConstraint(
            ["cache_key"], ["llm_cache.key"], name=op.f("llm_cache_source_cache_key_fkey"), ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(
            ["chunk_id"], ["chunk.id"], name=op.f("llm_cache_source_chunk_id_fkey"), ondelete="CASCADE"
        ),
        comment="Chunks whose text went into a cached response",
    )
    op.create_index("llm_cache_source_chunk_id_idx", "llm_cache_source", ["chunk_id"])

    op.create_table(
        "llm_usage",
        sa.Column("id", sa.BigInteger(), sa.Identity(always=True)),
        sa.Column("purpose", sa.Text(), nullable=False),
        sa.Column("model", sa.Text(), nullable=False),
        sa.Column("document_id", sa.BigInteger(), comment="document paid for; it may be gone since"),
        sa.Column("day", sa.Date(), server_default=sa.text("current_date"), nullable=False),
        sa.Column("calls", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("prompt_tokens", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("completion_tokens", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("cost", sa.Numeric(), server_default=sa.text("0"), nullable=False, comment="US dollars"),
        sa.PrimaryKeyConstraint("id", name=op.f("llm_usage_pkey")),
        sa.UniqueConstraint(
            "purpose",
            "model",
            "document_id",
            "day",
            name=op.f("llm_usage_purpose_model_document_id_day_key"),
            postgresql_nulls_not_distinct=True,
        ),
        comment="Tokens and cost of model calls per purpose, model, document and day",
    )


def downgrade() -> None:
    """Refused."""
    raise CommandError("pgrag does not downgrade data: restore a backup made before the upgrade")
