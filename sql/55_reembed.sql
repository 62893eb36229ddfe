-- Another embedding model: vectors are made again from the texts that are there; nothing is extracted again.

-- forget_vectors: before the columns change; entities and relations go through refresh, chunks and facts through
-- missing_vectors
create or replace function forget_vectors() returns void
language plpgsql
set search_path from current
as $f$
begin
    truncate chunk_vector, fact_vector, entity_vector, relation_vector;
    perform mark_stale(array(select e.id from entity e), array(select r.id from relation r));
end $f$;
comment on function forget_vectors() is 'Drops all vectors and marks entities and relations for refresh';

-- missing_vectors: the next texts without a vector. Of a chunk that waits for extraction the vector comes with its
-- facts.
create or replace function missing_vectors(p_kind text, p_after bigint, p_limit integer)
returns table (id bigint, text text)
language sql stable
set search_path from current
as $f$
    (select c.id, array_to_string(c.headings || c.body, E'\n') from chunk c
     where p_kind = 'chunk' and c.id > p_after and c.extracted_at is not null
       and not exists (select from chunk_vector v where v.chunk_id = c.id)
     order by c.id limit p_limit)
    union all
    (select f.id, concat_ws(': ', nullif(f.context, ''), f.text) from fact f
     where p_kind = 'fact' and f.id > p_after and not exists (select from fact_vector v where v.fact_id = f.id)
     order by f.id limit p_limit)
$f$;
comment on function missing_vectors(text, bigint, integer) is
    'Chunks or facts after an id that have no vector, with the text to embed';

-- put_vectors: what is gone meanwhile is left out
create or replace function put_vectors(p_code text, p_kind text, p_id bigint[], p_vector halfvec[]) returns bigint
language plpgsql
set search_path from current
as $f$
declare
    v_count bigint;
begin
    perform raise_unless_current(p_code);
    if p_kind = 'chunk' then
        insert into chunk_vector (chunk_id, embedding)
        select c.id, t.embedding from unnest(p_id, p_vector) as t (id, embedding)
        join (select c.id from chunk c where c.id = any (p_id) order by c.id for key share) c on c.id = t.id
        order by c.id on conflict do nothing;
    else
        insert into fact_vector (fact_id, embedding)
        select f.id, t.embedding from unnest(p_id, p_vector) as t (id, embedding)
        join (select f.id from fact f where f.id = any (p_id) order by f.id for key share) f on f.id = t.id
        order by f.id on conflict do nothing;
    end if;
    get diagnostics v_count = row_count;
    return v_count;
end $f$;
comment on function put_vectors(text, text, bigint[], halfvec[]) is
    'Stores vectors of chunks or facts that have none; returns how many';
