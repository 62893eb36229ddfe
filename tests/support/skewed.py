"""A workspace as uneven as real ones, made in SQL: degrees by Zipf's law, and a hub that most entities are related to.

Nothing is random from one run to the next. Numbers count from 1 and are the ids: entity 1 is the hub, relation 1 is
stated by a third of all chunks. Two thirds of the chunks mention the hub. Only every so manieth entity, relation and
fact has its vector yet, for an index of many takes long to build.
"""

from __future__ import annotations

import psycopg
from psycopg import sql
from pydantic import SecretStr

from pgrag.config import Settings
from pgrag.database.migrate import initialise
from tests.support import postgres
from tests.support.models import WordEmbedder

DATABASE = "skewed"
EMBEDDER = WordEmbedder(8)
ENTITIES, LEAVES, PAIRS = 110_000, 100_000, 150_000
DOCUMENTS, CHUNKS = 6_000, 60_000
HUB, BUSY_RELATION = 1, 1
EVERY = (1, 10, 100, 1000)  # metadata {"every10": true} is in every tenth document

# replica: foreign keys are not checked row by row
SETTINGS = """
set synchronous_commit = off; set session_replication_role = replica; set maintenance_work_mem = '512MB';
set min_parallel_table_scan_size = 0; set search_path = pgrag, public; select setseed(.25)
"""

ROWS = """
create function pg_temp.zipf(n bigint) returns bigint language sql volatile as
    'select floor(exp(random() * ln(n)))::bigint';
-- n is no use, but that the numbers are drawn anew for each
create function pg_temp.vector(n bigint) returns halfvec language sql volatile as
    'select array_agg(random() - .5 + 0 * n)::halfvec from generate_series(1, {dimension})';

insert into document (uri, title, mime, sha256, settings_digest, metadata, body, tokens, status, published_at)
select 'doc/' || n, 'Document ' || n, 'text/plain', md5(n::text), '', jsonb_build_object('n', n) || coalesce((
           select jsonb_object_agg('every' || e, true) from unnest({every}::bigint[]) as e where n % e = 0), '{{}}'),
       'body', 100, 'complete', timestamp '2000-01-01' + n * interval '1 hour'
from generate_series(1, {documents}::bigint) n;
insert into chunk (document_id, ordinal, body, sha256, start_char, end_char, tokens, extracted_at)
select 1 + (n - 1) / 10, (n - 1) % 10, repeat(md5(n::text), 6), md5(n::text), 0, 192, 60, now()
from generate_series(1, {chunks}::bigint) n;
insert into chunk_search (chunk_id, length, words)
select n, 12, (select string_agg(word || ':1', ' ')::tsvector
               from (select distinct 'w' || pg_temp.zipf(20000) as word from generate_series(1, 12) where n > 0) t)
from generate_series(1, {chunks}::bigint) n;
insert into lexeme (word, chunks) select word, ndoc from ts_stat('select words from chunk_search');
insert into lexeme (word, chunks, occurrences) select '', count(*), sum(length) from chunk_search;

insert into entity (name, type, description, tokens)
select case n when 1 then 'Hub' else initcap(left(md5(n::text), 10)) end, 'thing', 'described', 40
from generate_series(1, {entities}::bigint) n;
insert into entity_alias select lower(name), id from entity;
insert into relation (source, target, weight, description, tokens)
select s, t, 1 + random(), 'related', 50
from (select 1 as s, n + 1 as t from generate_series(1, {leaves}::bigint) n
      union all
      (select distinct least(a, b), greatest(a, b)
       from (select 1 + pg_temp.zipf({entities} - 1) as a, 2 + floor(random() * ({entities} - 1))::bigint as b
             from generate_series(1, {pairs})) p
       where a <> b order by 1, 2)) r;
insert into adjacency (entity_id, relation_id, other_id, weight)
select source, id, target, weight from relation union all select target, id, source, weight from relation;
insert into mention (chunk_id, key, entity_id, name)
select m.chunk_id, lower(e.name), e.id, e.name
from (select n as chunk_id, 1 as entity_id from generate_series(1, {chunks}::bigint) n where n % 3 > 0
      union
      select 1 + n * 7919 % {chunks}, n from generate_series(2, {entities}::bigint) n
      union
      select 1 + floor(random() * {chunks})::bigint, 1 + pg_temp.zipf({entities} - 1)
      from generate_series(1, {entities})) m
join entity e on e.id = m.entity_id order by 1, 2;
insert into fact (chunk_id, ordinal, relation_id, text, tokens)
select n, 0, case n % 3 when 0 then 1 else 1 + n * 7919 % (select max(id) from relation) end, 'fact ' || n, 5
from generate_series(1, {chunks}::bigint) n;
insert into fact_entity (fact_id, key, entity_id, role)
select f.id, lower(e.name), e.id, case e.id when r.source then 'source' else 'target' end
from fact f join relation r on r.id = f.relation_id join entity e on e.id in (r.source, r.target);
update entity e set degree = coalesce(d.n, 0), mentions = m.n
from (select entity_id, count(*) as n from mention group by 1) m
left join (select entity_id, count(*) as n from adjacency group by 1) d using (entity_id)
where m.entity_id = e.id;

insert into chunk_vector select n, pg_temp.vector(n) from generate_series(1, {chunks}::bigint) n;
insert into entity_vector select id, pg_temp.vector(id) from entity where id % 5 = 1;
insert into relation_vector select id, pg_temp.vector(id) from relation where id % 12 = 1;
insert into fact_vector select id, pg_temp.vector(id) from fact where id % 3 = 1;
"""

SLOW_INDEXES = """
select i.indexrelid::regclass::text, pg_get_indexdef(i.indexrelid)
from pg_index i join pg_class c on c.oid = i.indexrelid join pg_am a on a.oid = c.relam
where c.relnamespace = 'pgrag'::regnamespace and (a.amname in ('hnsw', 'gin') or c.relname = 'adjacency_hop_idx')
order by 1
"""


def skewed_dsn(server: postgres.Postgresql) -> str:
    """The database with the workspace: it is made at the first call. Tests read it and leave it as it is."""
    dsn = str(server.url(database=DATABASE))
    with psycopg.connect(server.url(), autocommit=True) as connection:
        made = connection.execute("select from pg_database where datname = %s", [DATABASE]).fetchone()
    if made is None:
        postgres.create_database(server.url(), DATABASE)
        initialise(Settings(dsn=SecretStr(dsn)), EMBEDDER)
        _fill(dsn)
    return dsn


def _fill(dsn: str) -> None:
    numbers = {
        "dimension": EMBEDDER.dimension, "entities": ENTITIES, "leaves": LEAVES, "pairs": PAIRS,
        "documents": DOCUMENTS, "chunks": CHUNKS, "every": list(EVERY),
    }  # fmt: skip
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(sql.SQL(SETTINGS))
        indexes = connection.execute(SLOW_INDEXES).fetchall()
        for name, _ in indexes:
            connection.execute(sql.SQL("drop index {}").format(sql.SQL(name)))
        connection.execute(sql.SQL(ROWS).format(**{name: sql.Literal(value) for name, value in numbers.items()}))
        for _, definition in indexes:
            connection.execute(sql.SQL(definition))
        connection.execute("vacuum (analyze)")
