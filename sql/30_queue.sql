-- The work queue is the chunk table: extracted_at is null means to do. Leases use the server's clock.

-- adopt_extractions: chunks whose text and headings were extracted already, elsewhere, take it over
create or replace function adopt_extractions(p_limit integer) returns bigint
language plpgsql
set search_path from current
as $f$
declare
    v_chunk bigint[];
    v_twin bigint[];
    v_document bigint[];
begin
    select array_agg(c.id order by c.id), array_agg(c.twin order by c.id), array_agg(distinct c.document_id)
    into v_chunk, v_twin, v_document
    from (
        select c.id, c.document_id, twin.id as twin
        from chunk c join document d on d.id = c.document_id
        cross join lateral (
            select t.id from chunk t
            where t.sha256 = c.sha256 and t.headings = c.headings and t.extracted_at is not null
            order by t.id limit 1 for key share skip locked
        ) twin
        where c.extracted_at is null and (c.lease_until is null or c.lease_until < now())
        order by c.id limit p_limit
        for key share of d skip locked
        for update of c skip locked
    ) c;
    if v_chunk is null then
        return 0;
    end if;

    insert into mention (chunk_id, key, entity_id, name, type, description, tokens)
    select p.chunk_id, m.key, m.entity_id, m.name, m.type, m.description, m.tokens
    from unnest(v_chunk, v_twin) as p (chunk_id, twin) join mention m on m.chunk_id = p.twin
    order by m.entity_id, p.chunk_id
    on conflict do nothing;
    insert into fact (chunk_id, ordinal, relation_id, text, context, keywords, strength, tokens)
    select p.chunk_id, f.ordinal, f.relation_id, f.text, f.context, f.keywords, f.strength, f.tokens
    from unnest(v_chunk, v_twin) as p (chunk_id, twin) join fact f on f.chunk_id = p.twin
    order by p.chunk_id, f.ordinal
    on conflict do nothing;
    insert into fact_entity (fact_id, key, entity_id, role)
    select n.id, e.key, e.entity_id, e.role
    from unnest(v_chunk, v_twin) as p (chunk_id, twin)
    join fact f on f.chunk_id = p.twin join fact n on n.chunk_id = p.chunk_id and n.ordinal = f.ordinal
    join fact_entity e on e.fact_id = f.id
    order by e.entity_id, n.id
    on conflict do nothing;
    insert into fact_vector (fact_id, embedding)
    select n.id, v.embedding
    from unnest(v_chunk, v_twin) as p (chunk_id, twin)
    join fact f on f.chunk_id = p.twin join fact n on n.chunk_id = p.chunk_id and n.ordinal = f.ordinal
    join fact_vector v on v.fact_id = f.id
    on conflict do nothing;
    insert into chunk_vector (chunk_id, embedding)
    select p.chunk_id, v.embedding
    from unnest(v_chunk, v_twin) as p (chunk_id, twin) join chunk_vector v on v.chunk_id = p.twin
    on conflict do nothing;
    insert into llm_cache_source (cache_key, chunk_id)
    select s.cache_key, p.chunk_id
    from unnest(v_chunk, v_twin) as p (chunk_id, twin) join llm_cache_source s on s.chunk_id = p.twin
    on conflict do nothing;
    update chunk c set extracted_at = now(), keywords = t.keywords, error = null, lease_until = null, lease_token = null
    from unnest(v_chunk, v_twin) as p (chunk_id, twin) join chunk t on t.id = p.twin
    where c.id = p.chunk_id;
    perform mark_chunks_stale(v_chunk);
    perform settle_documents(v_document);
    return cardinality(v_chunk);
end $f$;
comment on function adopt_extractions(integer) is
    'Gives waiting chunks the extraction of an equal text that was extracted already; returns how many';

-- claim_chunks: takes waiting chunks for a worker, of some documents or of all; of equal texts only one at a time, the
-- others adopt its result
create or replace function claim_chunks(
    p_code text, p_document bigint[], p_limit integer, p_lease_seconds double precision,
    p_lease_token uuid default gen_random_uuid())
returns table (chunk_id bigint, lease_token uuid, document_id bigint, uri text, ordinal integer, body text,
               headings text[],
               page integer, start_char integer, end_char integer, tokens integer)
language plpgsql
set search_path from current
as $f$
begin
    perform raise_unless_current(p_code);
    return query
    with todo as (
        select c.id from chunk c
        where c.extracted_at is null
          and (p_document is null or c.document_id = any (p_document))
          and (c.retry_at is null or c.retry_at <= now())
          and (c.lease_until is null or c.lease_until < now() or c.lease_token = p_lease_token)
          and not exists (  -- an equal text is extracted, is being worked on, or comes first in this very call
              select from chunk t
              where t.sha256 = c.sha256 and t.headings = c.headings and t.id <> c.id
                and (t.extracted_at is not null or t.lease_until >= now()
                     or t.id < c.id and (p_document is null or t.document_id = any (p_document))
                        and (t.retry_at is null or t.retry_at <= now()))
          )
        order by c.id limit p_limit
        for update of c skip locked
    ), taken as (
        update chunk c set lease_until = now() + make_interval(secs => p_lease_seconds), lease_token = p_lease_token
        from todo where c.id = todo.id
        returning c.*
    )
    select t.id, t.lease_token, t.document_id, d.uri, t.ordinal, t.body, t.headings, t.page, t.start_char, t.end_char,
           t.tokens
    from taken t join document d on d.id = t.document_id
    order by t.id;
end $f$;
comment on function claim_chunks(text, bigint[], integer, double precision, uuid) is
    'Leases waiting chunks (of these documents; null: of all) to a worker, who may choose the token: whoever claims '
    'with it again gets what he holds. Results are accepted only with the lease token';

-- fail_chunks: records failures; after p_max_attempts a chunk gives up until it is retried by hand
create or replace function fail_chunks(
    p_code text, p_chunk bigint[], p_lease_token uuid[], p_error text[], p_max_attempts integer,
    p_backoff_seconds double precision)
returns bigint[]
language plpgsql
set search_path from current
as $f$
declare
    v_failed bigint[];
    v_document bigint[];
begin
    perform raise_unless_current(p_code);
    perform hold_documents(p_chunk);
    with failed as (
        update chunk c
        set attempts = c.attempts + 1, error = t.error, lease_until = null, lease_token = null,
            retry_at = case when c.attempts + 1 >= p_max_attempts then 'infinity'
                            else now() + make_interval(secs => p_backoff_seconds * 2 ^ c.attempts) end
        from unnest(p_chunk, p_lease_token, p_error) as t (id, lease_token, error)
        where c.id = t.id and c.lease_token = t.lease_token and c.extracted_at is null
        returning c.id, c.document_id
    )
    select array_agg(f.id), array_agg(distinct f.document_id) into v_failed, v_document from failed f;
    perform settle_documents(v_document);
    return coalesce(v_failed, '{}');
end $f$;
comment on function fail_chunks(text, bigint[], uuid[], text[], integer, double precision) is
    'Records why chunks failed and when to try again; returns those that were still the caller''s';

-- extend_leases: a worker that is still at it keeps its chunks
create or replace function extend_leases(p_lease_token uuid[], p_lease_seconds double precision) returns bigint
language sql
set search_path from current
as $f$
    with kept as (
        update chunk c set lease_until = now() + make_interval(secs => p_lease_seconds)
        where c.lease_token = any (p_lease_token) and c.extracted_at is null
        returning 1
    )
    select count(*) from kept
$f$;
comment on function extend_leases(uuid[], double precision) is
    'Prolongs the leases with these tokens; returns how many chunks are still held';

-- release_chunks: gives leases back at once (an interrupted worker)
create or replace function release_chunks(p_lease_token uuid[]) returns bigint
language sql
set search_path from current
as $f$
    with freed as (
        update chunk c set lease_until = null, lease_token = null
        where c.lease_token = any (p_lease_token) and c.extracted_at is null
        returning 1
    )
    select count(*) from freed
$f$;
comment on function release_chunks(uuid[]) is 'Gives chunks back that were claimed with these tokens';

-- retry_chunks: lets chunks that gave up be tried again
create or replace function retry_chunks(p_code text) returns bigint
language plpgsql
set search_path from current
as $f$
declare
    v_document bigint[];
begin
    perform raise_unless_current(p_code);
    perform hold_documents(array(
        select c.id from chunk c where c.extracted_at is null and c.retry_at is not null));
    with again as (
        update chunk c set attempts = 0, retry_at = null where c.extracted_at is null and c.retry_at is not null
        returning c.document_id
    )
    select array_agg(document_id) into v_document from again;
    perform settle_documents(v_document);
    return coalesce(cardinality(v_document), 0);
end $f$;
comment on function retry_chunks(text) is 'Lets chunks that failed be tried again; returns how many';

-- waiting_seconds: null when nothing waits, else seconds until the next chunk can be claimed (0: now)
create or replace function waiting_seconds(p_document bigint[] default null) returns double precision
language sql stable
set search_path from current
as $f$
    select extract(epoch from min(greatest(coalesce(c.retry_at, now()), coalesce(c.lease_until, now()), now())) - now())
    from chunk c
    where c.extracted_at is null and c.retry_at is distinct from 'infinity'
      and (p_document is null or c.document_id = any (p_document))
$f$;
comment on function waiting_seconds(bigint[]) is
    'Seconds until a chunk (of these documents; null: of all) can be claimed (0: now), or null when none waits';

-- ingest_progress: one row for a progress line; in (select …): an array is searched from end to end for each chunk
create or replace function ingest_progress(p_document bigint[] default null)
returns table (documents bigint, chunks_total bigint, chunks_done bigint, chunks_failed bigint, entities bigint,
               relations bigint,
               facts bigint, stale bigint)
language sql stable
set search_path from current
as $f$
    select (select count(*) from document d where p_document is null or d.id in (select unnest(p_document))),
           count(*), count(c.extracted_at),
           count(*) filter (where c.extracted_at is null and c.retry_at = 'infinity'),
           (select count(*) from entity), (select count(*) from relation), (select count(*) from fact),
           (select count(*) from stale)
    from chunk c where p_document is null or c.document_id in (select unnest(p_document))
$f$;
comment on function ingest_progress(bigint[]) is
    'How far the work on these documents (null: on all) is; entities, relations, facts and stale marks are those of '
    'the workspace';
