-- From extracted facts to the graph: names are linked to entities, pairs to relations; what was touched is marked
-- stale.

-- mark_stale: entities and relations that refresh must compute again
create or replace function mark_stale(p_entity bigint[], p_relation bigint[]) returns void
language sql
set search_path from current
as $f$
    insert into stale as s (kind, id)
    select kind, id from (
        select distinct 'entity' as kind, unnest(p_entity) as id
        union all
        select distinct 'relation', unnest(p_relation)
    ) t
    order by kind, id
    on conflict (kind, id) do update set version = s.version + 1
$f$;
comment on function mark_stale(bigint[], bigint[]) is 'Marks entities and relations for refresh';

-- mark_chunks_stale: everything these chunks speak of
create or replace function mark_chunks_stale(p_chunk bigint[]) returns void
language sql
set search_path from current
as $f$
    select mark_stale(
        array(select distinct m.entity_id from mention m where m.chunk_id = any (p_chunk)),
        array(select distinct f.relation_id from fact f where f.chunk_id = any (p_chunk) and f.relation_id is not null))
$f$;
comment on function mark_chunks_stale(bigint[]) is
    'Marks all entities and relations that these chunks name for refresh';

-- link_names: the entity of each key, made where there is none. Aliases stay locked against a merge until the end. Keys
-- are taken in one order by everybody, so writers never deadlock; a name made twice at once is given up by the loser.
-- What a deletion takes away between two statements must not be left out silently: the transaction fails and is
-- repeated.
create or replace function link_names(p_key text[], p_name text[], p_type text[])
returns table (key text, entity_id bigint)
language plpgsql
set search_path from current
as $f$
declare
    v_key text[];
    v_id bigint[];
    v_found bigint;
begin
    perform 1 from entity_alias a where a.key = any (p_key) order by a.key collate "C" for key share;
    with missing as (
        select t.key, min(t.name collate "C") as name, min(t.type collate "C") as type
        from unnest(p_key, p_name, p_type) as t (key, name, type)
        where not exists (select from entity_alias a where a.key = t.key)
        group by t.key
    ), made as (
        insert into entity (id, name, type) overriding system value
        select nextval(pg_get_serial_sequence('entity', 'id')), m.name, m.type from missing m order by m.key collate "C"
        returning id, entity.name
    )
    select array_agg(m.key order by m.n), array_agg(e.id order by m.n) into v_key, v_id
    from (select missing.key, row_number() over (order by missing.key collate "C") as n from missing) m
    join (select id, row_number() over (order by id) as n from made) e using (n);
    insert into entity_alias (key, entity_id)
    select t.key, t.id from unnest(v_key, v_id) as t (key, id) order by t.key collate "C"
    on conflict on constraint entity_alias_pkey do nothing;
    delete from entity e where e.id = any (v_id) and not exists (select from entity_alias a where a.entity_id = e.id);
    return query
    select a.key, a.entity_id from entity_alias a where a.key = any (p_key) order by a.key collate "C" for key share;
    get diagnostics v_found = row_count;
    if v_found < (select count(distinct k) from unnest(p_key) as k) then
        raise exception 'an entity was removed meanwhile' using errcode = 'serialization_failure';
    end if;
end $f$;
comment on function link_names(text[], text[], text[]) is
    'The entity each normal form stands for; makes entities for new ones';

-- link_relations: relations of facts that name a source and a target; returns their ids
create or replace function link_relations(p_fact bigint[]) returns bigint[]
language plpgsql
set search_path from current
as $f$
declare
    v_relation bigint[];
begin
    insert into relation (source, target)
    select distinct p.source, p.target from fact_pairs(p_fact) p order by p.source, p.target
    on conflict on constraint relation_source_target_key do nothing;
    update fact f set relation_id = r.id
    from fact_pairs(p_fact) p join relation r on r.source = p.source and r.target = p.target
    where f.id = p.fact_id and f.relation_id is distinct from r.id;
    if exists (select from fact_pairs(p_fact) p join fact f on f.id = p.fact_id where f.relation_id is null) then
        raise exception 'a relation was removed meanwhile' using errcode = 'serialization_failure';
    end if;
    select array_agg(distinct f.relation_id) into v_relation from fact f
    where f.id = any (p_fact) and f.relation_id is not null;
    return v_relation;
end $f$;
comment on function link_relations(bigint[]) is 'Makes the relations that facts state and links the facts to them';

-- fact_pairs: the unordered pair of each fact with a source and a target; a self-loop is none
create or replace function fact_pairs(p_fact bigint[])
returns table (fact_id bigint, source bigint, target bigint)
language sql stable
set search_path from current
as $f$
    select s.fact_id, least(min(s.entity_id), min(t.entity_id)), greatest(min(s.entity_id), min(t.entity_id))
    from fact_entity s join fact_entity t on t.fact_id = s.fact_id and t.role = 'target'
    where s.role = 'source' and s.fact_id = any (p_fact)
    group by s.fact_id
    having min(s.entity_id) <> min(t.entity_id)
$f$;
comment on function fact_pairs(bigint[]) is 'The two entities each fact relates, lower id first';

-- save_extraction: what workers found in chunks, in one transaction. Chunks whose lease was lost, or that are gone, are
-- left out. Parallel arrays; mentions, facts and entities of facts name their chunk (and fact, by its ordinal).
create or replace function save_extraction(
    p_code text, p_chunk bigint[], p_lease_token uuid[], p_keywords jsonb[], p_vector halfvec[], p_m_chunk bigint[],
    p_m_key text[], p_m_name text[], p_m_type text[], p_m_description text[], p_m_tokens integer[], p_f_chunk bigint[],
    p_f_ordinal integer[], p_f_text text[], p_f_context text[], p_f_keywords jsonb[], p_f_strength real[],
    p_f_tokens integer[], p_f_vector halfvec[], p_e_chunk bigint[], p_e_ordinal integer[], p_e_key text[],
    p_e_role text[])
returns bigint[]
language plpgsql
set search_path from current
as $f$
declare
    v_chunk bigint[];
    v_document bigint[];
    v_fact bigint[];
    v_fact_chunk bigint[];
    v_fact_ordinal integer[];
    v_key text[];
    v_entity bigint[];
    v_relation bigint[];
begin
    perform raise_unless_current(p_code);
    perform hold_documents(p_chunk);
    select array_agg(c.id), array_agg(distinct c.document_id) into v_chunk, v_document
    from (
        select c.id, c.document_id from chunk c
        join unnest(p_chunk, p_lease_token) as t (id, lease_token) on c.id = t.id and c.lease_token = t.lease_token
        where c.extracted_at is null
        order by c.id for no key update of c
    ) c;
    if v_chunk is null then
        return '{}';
    end if;

    select array_agg(l.key), array_agg(l.entity_id) into v_key, v_entity
    from link_names(
        array(select t.key from unnest(p_m_chunk, p_m_key) with ordinality as t (chunk_id, key, i)
              where t.chunk_id = any (v_chunk) order by i),
        array(select t.name from unnest(p_m_chunk, p_m_name) with ordinality as t (chunk_id, name, i)
              where t.chunk_id = any (v_chunk) order by i),
        array(select t.type from unnest(p_m_chunk, p_m_type) with ordinality as t (chunk_id, type, i)
              where t.chunk_id = any (v_chunk) order by i)) l;
    insert into mention (chunk_id, key, entity_id, name, type, description, tokens)
    select t.chunk_id, t.key, l.entity_id, t.name, t.type, t.description, t.tokens
    from unnest(p_m_chunk, p_m_key, p_m_name, p_m_type, p_m_description, p_m_tokens)
         as t (chunk_id, key, name, type, description, tokens)
    join unnest(v_key, v_entity) as l (key, entity_id) on l.key = t.key
    where t.chunk_id = any (v_chunk)
    order by l.entity_id, t.chunk_id
    on conflict do nothing;

    with made as (
        insert into fact (chunk_id, ordinal, text, context, keywords, strength, tokens)
        select t.chunk_id, t.ordinal, t.text, t.context, array(select jsonb_array_elements_text(t.keywords)),
               t.strength, t.tokens
        from unnest(p_f_chunk, p_f_ordinal, p_f_text, p_f_context, p_f_keywords, p_f_strength, p_f_tokens)
             as t (chunk_id, ordinal, text, context, keywords, strength, tokens)
        where t.chunk_id = any (v_chunk)
        order by t.chunk_id, t.ordinal
        returning id, chunk_id, ordinal
    )
    select array_agg(m.id), array_agg(m.chunk_id), array_agg(m.ordinal) into v_fact, v_fact_chunk, v_fact_ordinal
    from made m;
    insert into fact_entity (fact_id, key, entity_id, role)
    select f.id, t.key, l.entity_id, t.role
    from unnest(p_e_chunk, p_e_ordinal, p_e_key, p_e_role) as t (chunk_id, ordinal, key, role)
    join unnest(v_fact, v_fact_chunk, v_fact_ordinal) as f (id, chunk_id, ordinal) using (chunk_id, ordinal)
    join unnest(v_key, v_entity) as l (key, entity_id) on l.key = t.key
    order by l.entity_id, f.id
    on conflict do nothing;
    v_relation := link_relations(v_fact);

    insert into fact_vector (fact_id, embedding)
    select f.id, t.embedding
    from unnest(p_f_chunk, p_f_ordinal, p_f_vector) as t (chunk_id, ordinal, embedding)
    join unnest(v_fact, v_fact_chunk, v_fact_ordinal) as f (id, chunk_id, ordinal) using (chunk_id, ordinal)
    order by f.id;
    insert into chunk_vector as v (chunk_id, embedding)
    select t.chunk_id, t.embedding from unnest(p_chunk, p_vector) as t (chunk_id, embedding)
    where t.chunk_id = any (v_chunk)
    order by t.chunk_id
    on conflict (chunk_id) do update set embedding = excluded.embedding;
    update chunk c
    set extracted_at = now(), keywords = array(select jsonb_array_elements_text(t.keywords)), error = null,
        retry_at = null,
        lease_until = null, lease_token = null
    from unnest(p_chunk, p_keywords) as t (id, keywords)
    where c.id = t.id and c.id = any (v_chunk);
    perform mark_stale(v_entity, v_relation);
    perform settle_documents(v_document);
    return v_chunk;
end $f$;
comment on function save_extraction(text, bigint[], uuid[], jsonb[], halfvec[], bigint[], text[], text[], text[],
    text[], integer[], bigint[], integer[], text[], text[], jsonb[], real[], integer[], halfvec[], bigint[], integer[],
    text[], text[]) is
    'Stores mentions, facts and vectors of claimed chunks and links them to entities and relations; returns the '
    'chunks accepted';
