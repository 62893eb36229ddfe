-- What analysts read.

create or replace view documents as
select d.id, d.uri, d.title, d.mime, d.status, d.error, length(d.body) as characters, d.tokens,
       c.chunks, c.chunks_done, c.chunks_failed, d.labels, d.metadata, d.published_at, d.created_at, d.updated_at
from document d
cross join lateral (
    select count(*) as chunks, count(c.extracted_at) as chunks_done,
           count(*) filter (where c.extracted_at is null and c.retry_at = 'infinity') as chunks_failed
    from chunk c where c.document_id = d.id
) c;
comment on view documents is 'Documents with the state of their chunks; status is pending, complete, failed or empty';

create or replace view entities as
select e.id, e.name, e.type, e.description, e.degree, e.mentions,
       array(select a.key from entity_alias a where a.entity_id = e.id order by a.key) as aliases
from entity e;
comment on view entities is
    'Entities with every normal form that names them; degree counts relations, mentions counts chunks';

create or replace view relations as
select r.id, s.name as source, t.name as target, r.keywords, r.description, r.weight, r.source as source_id,
       r.target as target_id
from relation r join entity s on s.id = r.source join entity t on t.id = r.target;
comment on view relations is 'Relations with the names of both ends; a relation has no direction';

create or replace view sources as
select f.id as fact_id, f.text as fact, f.keywords, f.strength, f.relation_id,
       array(select e.name from fact_entity x join entity e on e.id = x.entity_id where x.fact_id = f.id
             order by array_position(array['source', 'target', 'named'], x.role), e.name) as entities,
       d.id as document_id, d.uri, d.title, c.id as chunk_id, c.ordinal, c.page, c.headings, c.start_char, c.end_char,
       c.body as passage
from fact f left join chunk c on c.id = f.chunk_id left join document d on d.id = c.document_id;
comment on view sources is
    'Every fact with the passage that states it: document, chunk, page and characters start_char to end_char of the '
    'document';

create or replace view failures as
select d.uri, c.ordinal, c.error, c.attempts, c.retry_at
from chunk c join document d on d.id = c.document_id where c.extracted_at is null and c.error is not null;
comment on view failures is 'Chunks that failed; retry_at infinity: they wait until they are retried by hand';

create or replace view usage as
select u.purpose, u.model, sum(u.calls)::bigint as calls, sum(u.prompt_tokens)::bigint as prompt_tokens,
       sum(u.completion_tokens)::bigint as completion_tokens, sum(u.cost) as cost,
       coalesce(sum(u.calls) filter (where u.cost = 0), 0)::bigint as calls_without_price
from llm_usage u group by u.purpose, u.model;
comment on view usage is
    'Model calls, tokens and US dollars so far, by purpose and model; by document and day: llm_usage';

-- workspace_stats: size and state in one row
create or replace function workspace_stats()
returns table (embedding_model text, dimension integer, documents bigint, documents_failed bigint,
               documents_empty bigint, chunks bigint,
               chunks_pending bigint, chunks_failed bigint, entities bigint, relations bigint, facts bigint,
               mentions bigint, stale bigint,
               bytes bigint)
language sql stable
set search_path from current
as $f$
    select m.embedding_model, m.dimension, d.documents, d.failed, d.empty, p.chunks_total,
           p.chunks_total - p.chunks_done - p.chunks_failed, p.chunks_failed, p.entities, p.relations, p.facts,
           (select count(*) from mention), p.stale,
           (select coalesce(sum(pg_total_relation_size(c.oid)), 0)::bigint from pg_class c
            where c.relkind = 'r' and c.relnamespace = (select relnamespace from pg_class where oid = 'meta'::regclass))
    from meta m, ingest_progress() p, (
        select count(*) as documents, count(*) filter (where status = 'failed') as failed,
               count(*) filter (where status = 'empty') as empty
        from document
    ) d
$f$;
comment on function workspace_stats() is
    'What the workspace was made with, how much it holds, what waits or failed, and its size in bytes';
