-- What a search reads of the graph, each in a function of two arms: over the indexes, or, with a scope (see 62), over
-- what its passages state. With a scope, entities are seeded by facts and passages in place of profiles. Limits are
-- constants where an index is read (a limit parameter makes a generic plan expect a tenth of the table); order by and
-- limit after that trim. The caller decides whether plans are generic (indexes) or made for the arrays at hand, whose
-- lengths decide (scope).

create type asked as (
    question halfvec, low halfvec, high halfvec, words text[], parts integer[], keys text[], names text[], mode text,
    top_k integer, threshold real, degree_cap integer, hops integer, ranking text, lexical double precision,
    nearness double precision, most integer, entity_tokens integer, relation_tokens integer);
comment on type asked is
    'A question as retrieve() was asked it; most is the number of passages, budgets are those that the total allows';

create or replace function near_entities(p_asked asked, p_scope scope)
returns table (entity_id bigint, n bigint, cos double precision, why text)
language plpgsql stable rows 40
set search_path from current
as $f$
#variable_conflict use_column
declare
    v_before text[];
begin
    if p_scope.chunk is null then
        v_before := begin_scan(2 * p_asked.top_k, 'entity_vector', 'relation_vector');
        return query
        select entity_id, row_number() over (order by cos desc, entity_id), cos, 'vector'
        from (select * from (select entity_id, 1 - (embedding <=> p_asked.low) as cos from entity_vector
                             where p_asked.low is not null order by embedding <=> p_asked.low limit 500) near
              limit current_setting('hnsw.ef_search')::integer) nearest
        where cos >= p_asked.threshold order by 2 limit p_asked.top_k;
        perform end_scan(v_before);
    else  -- the entities of the nearest facts, then, after all others, those of the nearest passages
        return query
        (select e.entity_id, row_number() over (order by max(cos) desc, e.entity_id), max(cos), 'fact'
         from (select id, cos from unnest(p_scope.f_id, p_scope.f_low) as f (id, cos)
               where cos >= p_asked.threshold order by cos desc, id limit p_asked.top_k) near
         join fact_entity e on e.fact_id = near.id group by e.entity_id order by 2 limit p_asked.top_k)
        union all
        select m.entity_id, 1000000 + row_number() over (order by min(near.n), m.entity_id), null, 'passage'
        from (select id, row_number() over (order by cos desc, id) as n
              from unnest(p_scope.chunk, p_scope.near_low) as c (id, cos)
              where cos >= p_asked.threshold order by 2 limit 5) near
        join unnest(p_scope.m_entity, p_scope.m_chunk) as m (entity_id, chunk_id) on m.chunk_id = near.id
        group by m.entity_id;
    end if;
end $f$;
comment on function near_entities(asked, scope) is 'Entities near the low-level keywords of a question, best first';

create or replace function named_entities(p_key text[], p_scope scope)
returns table (entity_id bigint, n bigint)
language plpgsql stable rows 10
set search_path from current
as $f$
#variable_conflict use_column
begin
    if p_key = '{}' then
        return;
    end if;
    return query
    select a.entity_id, min(k.n) from unnest(p_key) with ordinality as k (key, n) join entity_alias a using (key)
    where p_scope.chunk is null or a.entity_id in (select unnest(p_scope.entity)) group by a.entity_id;
end $f$;
comment on function named_entities(text[], scope) is
    'Entities with one of these names (normal forms), in the order of the names';

create or replace function similar_entities(p_key text[], p_scope scope)
returns table (entity_id bigint, n bigint)
language plpgsql stable rows 10
set search_path from current
as $f$
#variable_conflict use_column
declare
    v_before text[];
    v_unknown text[];
begin
    v_unknown := array(
        select key from unnest(p_key) with ordinality as k (key, n)
        where not exists (
            select from entity_alias a
            where a.key = k.key and (p_scope.chunk is null or a.entity_id in (select unnest(p_scope.entity))))
        order by n);
    if v_unknown = '{}' then
        return;
    end if;
    v_before := change_settings('{pg_trgm.similarity_threshold}', '{.5}');
    return query
    select a.entity_id, min(k.n * 3 + a.n)
    from unnest(v_unknown) with ordinality as k (key, n)
    cross join lateral (
        select entity_id, row_number() over (order by similarity(key, k.key) desc, key) as n
        from (select * from entity_alias where key % k.key limit 1000) alike
        where p_scope.chunk is null or entity_id in (select unnest(p_scope.entity))
        order by 2 limit 3
    ) a
    group by a.entity_id;
    perform change_settings('{pg_trgm.similarity_threshold}', v_before);
end $f$;
comment on function similar_entities(text[], scope) is
    'For each name that nobody has, the three entities with the most similar names';

create or replace function near_relations(p_asked asked, p_scope scope)
returns table (relation_id bigint, source bigint, target bigint, n bigint, cos double precision, why text)
language plpgsql stable rows 40
set search_path from current
as $f$
#variable_conflict use_column
declare
    v_before text[];
begin
    if p_scope.chunk is null then
        v_before := begin_scan(2 * p_asked.top_k, 'entity_vector', 'relation_vector');
        return query
        select relation_id, r.source, r.target, near.n, cos, 'vector'
        from (select relation_id, cos, row_number() over (order by cos desc, relation_id) as n
              from (select * from (select relation_id, 1 - (embedding <=> p_asked.high) as cos from relation_vector
                                   where p_asked.high is not null order by embedding <=> p_asked.high limit 500) near
                    limit current_setting('hnsw.ef_search')::integer) nearest
              where cos >= p_asked.threshold order by 3 limit p_asked.top_k) near
        join relation r on r.id = relation_id;
        perform end_scan(v_before);
    else
        return query
        select relation_id, e.source, e.target, near.n, cos, 'fact'
        from (select relation_id, max(cos) as cos, row_number() over (order by max(cos) desc, relation_id) as n
              from unnest(p_scope.f_relation, p_scope.f_high) as f (relation_id, cos)
              where relation_id is not null and cos >= p_asked.threshold group by relation_id order by 3
              limit p_asked.top_k) near
        join unnest(p_scope.e_relation, p_scope.e_source, p_scope.e_target) as e (relation_id, source, target)
             using (relation_id);
    end if;
end $f$;
comment on function near_relations(asked, scope) is
    'Relations near the high-level keywords of a question, best first, with their ends';

create or replace function edges_of(p_entity bigint[], p_most integer, p_scope scope)
returns table (n bigint, relation_id bigint, other_id bigint, weight double precision, j bigint)
language plpgsql stable rows 1000
set search_path from current
as $f$
#variable_conflict use_column
begin
    if p_scope.chunk is null then
        return query
        select e.n, h.relation_id, h.other_id, h.weight::double precision, h.j
        from unnest(p_entity) with ordinality as e (id, n)
        cross join lateral (
            select relation_id, other_id, weight, row_number() over (order by weight desc, relation_id) as j
            from (select relation_id, other_id, weight from adjacency
                  where entity_id = e.id order by weight desc, relation_id limit p_most) heaviest) h;
    else
        return query
        select e.n, h.relation_id, h.other_id, h.weight, h.j
        from unnest(p_entity) with ordinality as e (id, n)
        join (
            select *, row_number() over (partition by entity_id order by weight desc, relation_id) as j
            from unnest(p_scope.e_source || p_scope.e_target, p_scope.e_relation || p_scope.e_relation,
                        p_scope.e_target || p_scope.e_source, p_scope.e_weight || p_scope.e_weight)
                 as both_ways (entity_id, relation_id, other_id, weight)
            where entity_id in (select unnest(p_entity))
        ) h on h.entity_id = e.id and h.j <= p_most;
    end if;
end $f$;
comment on function edges_of(bigint[], integer, scope) is
    'The heaviest edges of each entity (n: its place in the list), j from 1 for the heaviest';

create or replace function edges_among(p_node bigint[], p_scope scope)
returns table (a bigint, b bigint, weight double precision)
language plpgsql stable rows 1000
set search_path from current
as $f$
#variable_conflict use_column
begin
    if p_scope.chunk is null then
        return query
        select node.i, other.i, hop.weight::double precision
        from unnest(p_node) with ordinality as node (id, i)
        cross join lateral (
            select other_id, weight from adjacency where entity_id = node.id order by weight desc, relation_id
            limit 32) hop
        join unnest(p_node) with ordinality as other (id, i) on other.id = hop.other_id;
    else
        return query
        select hop.n, other.i, hop.weight
        from edges_of(p_node, 32, p_scope) hop
        join unnest(p_node) with ordinality as other (id, i) on other.id = hop.other_id;
    end if;
end $f$;
comment on function edges_among(bigint[], scope) is
    'Of the 32 heaviest edges of each entity those that lead to another of them; a and b are places in the list';

create or replace function near_passages(p_question halfvec, p_most integer, p_breadth integer, p_scope scope)
returns table (chunk_id bigint, cos double precision)
language plpgsql stable rows 100
set search_path from current
as $f$
#variable_conflict use_column
declare
    v_before text[];
begin
    if p_scope.chunk is null then
        v_before := begin_scan(p_breadth, 'chunk_vector');
        return query
        select chunk_id, cos
        from (select * from (select chunk_id, 1 - (embedding <=> p_question) as cos from chunk_vector
                             where p_question is not null order by embedding <=> p_question limit 200) near
              limit current_setting('hnsw.ef_search')::integer) nearest
        order by cos desc, chunk_id limit p_most;
        perform end_scan(v_before);
    else
        return query
        select chunk_id, cos from unnest(p_scope.chunk, p_scope.near) as c (chunk_id, cos)
        where cos is not null order by cos desc, chunk_id limit p_most;
    end if;
end $f$;
comment on function near_passages(halfvec, integer, integer, scope) is 'Passages near a question, nearest first';

create or replace function nearness_of(p_question halfvec, p_chunk bigint[], p_scope scope)
returns table (chunk_id bigint, cos double precision)
language plpgsql stable rows 100
set search_path from current
as $f$
#variable_conflict use_column
begin
    if p_scope.chunk is null then
        return query
        select chunk_id, 1 - (embedding <=> p_question) from chunk_vector where chunk_id = any (p_chunk);
    else
        return query
        select chunk_id, cos from unnest(p_scope.chunk, p_scope.near) as c (chunk_id, cos)
        where cos is not null and chunk_id in (select unnest(p_chunk));
    end if;
end $f$;
comment on function nearness_of(halfvec, bigint[], scope) is 'How near passages are to a question';

create or replace function near_facts(p_question halfvec, p_scope scope)
returns table (fact_id bigint, chunk_id bigint, cos double precision)
language plpgsql stable rows 100
set search_path from current
as $f$
#variable_conflict use_column
declare
    v_before text[];
begin
    if p_scope.chunk is null then
        v_before := begin_scan(200, 'fact_vector');
        return query
        select near.fact_id, f.chunk_id, near.cos
        from (select fact_id, 1 - (embedding <=> p_question) as cos from fact_vector
              order by embedding <=> p_question limit 100) near
        join fact f on f.id = near.fact_id;
        perform end_scan(v_before);
    else
        return query
        select * from unnest(p_scope.f_id, p_scope.f_chunk, p_scope.f_near) as f (fact_id, chunk_id, cos)
        where cos is not null order by cos desc, fact_id limit 100;
    end if;
end $f$;
comment on function near_facts(halfvec, scope) is
    'The 100 facts nearest to a question, with the passages that state them';

create or replace function passages_of(p_entity bigint[], p_relation bigint[], p_scope scope)
returns table (channel text, n bigint, chunk_id bigint)
language plpgsql stable rows 1000
set search_path from current
set enable_bitmapscan = off  -- of a hub the first 50 in the index's order, not all, to be sorted
as $f$
#variable_conflict use_column
begin
    if p_scope.chunk is null then
        return query
        select 'entity', e.n, c.chunk_id
        from unnest(p_entity) with ordinality as e (id, n) cross join lateral (
            select distinct chunk_id from mention where entity_id = e.id and chunk_id is not null order by chunk_id
            limit 50) c
        union all
        select 'relation', r.n, c.chunk_id
        from unnest(p_relation) with ordinality as r (id, n) cross join lateral (
            select distinct chunk_id from fact where relation_id = r.id and chunk_id is not null order by chunk_id
            limit 50) c;
    else
        return query
        select channel, n, chunk_id
        from (
            select 'entity' as channel, e.n, m.chunk_id, row_number() over (partition by e.n order by m.chunk_id) as i
            from unnest(p_entity) with ordinality as e (id, n)
            join (select distinct * from unnest(p_scope.m_entity, p_scope.m_chunk) as m (id, chunk_id)
                  where id in (select unnest(p_entity))) m using (id)
            union all
            select 'relation', r.n, f.chunk_id, row_number() over (partition by r.n order by f.chunk_id)
            from unnest(p_relation) with ordinality as r (id, n)
            join (select distinct * from unnest(p_scope.f_relation, p_scope.f_chunk) as f (id, chunk_id)
                  where id in (select unnest(p_relation))) f using (id)
        ) link
        where i <= 50;
    end if;
end $f$;
comment on function passages_of(bigint[], bigint[], scope) is
    'The first 50 passages behind each entity and each relation (n: its place in its list); two names that became one '
    'entity, or two facts of one passage, are one link';

create or replace function entities_of(p_chunk bigint[], p_scope scope, out chunk bigint[], out entity bigint[])
language plpgsql stable
set search_path from current
as $f$
#variable_conflict use_column
begin
    if p_scope.chunk is null then
        select array_agg(id), array_agg(entity_id) into chunk, entity
        from (select distinct c.id, m.entity_id
              from unnest(p_chunk) as c (id)
              cross join lateral (select entity_id from mention where chunk_id = c.id offset 0) m) link;
    else
        select array_agg(chunk_id), array_agg(entity_id) into chunk, entity
        from (select distinct m.chunk_id, m.entity_id
              from unnest(p_scope.m_chunk, p_scope.m_entity) as m (chunk_id, entity_id)
              where m.chunk_id in (select unnest(p_chunk))) link;
    end if;
end $f$;
comment on function entities_of(bigint[], scope) is 'The entities that passages mention, as parallel arrays';

create or replace function mentions_of(p_entity bigint[], p_scope scope)
returns table (entity_id bigint, mentions bigint)
language plpgsql stable rows 50
set search_path from current
as $f$
#variable_conflict use_column
begin
    if p_scope.chunk is null then
        return query
        select id, greatest(mentions, 1)::bigint from entity where id = any (p_entity);
    else
        return query
        select m.entity_id, m.mentions from unnest(p_scope.entity, p_scope.mentions) as m (entity_id, mentions)
        where m.entity_id in (select unnest(p_entity));
    end if;
end $f$;
comment on function mentions_of(bigint[], scope) is
    'In how many passages entities are mentioned; 1 for those written by hand alone';

-- entity_rows, relation_rows: tokens within a scope are an upper bound for the line in a context, and never less than
-- 24: what cannot fit is not described
create or replace function entity_rows(p_entity bigint[], p_room integer, p_scope scope)
returns table (n bigint, id bigint, name text, type text, description text, tokens integer)
language plpgsql stable rows 100
set search_path from current
as $f$
#variable_conflict use_column
declare
    v_entity constant bigint[] := p_entity[:p_room / 24];
    v_mention bigint[];
begin
    if p_scope.chunk is null then
        return query
        select f.n, e.id, e.name, e.type, e.description, e.tokens
        from (select u.n, u.id, sum(e.tokens) over (order by u.n) as total
              from unnest(p_entity) with ordinality as u (id, n) join entity e using (id)) f
        join entity e using (id)
        where total <= p_room order by f.n;
    else
        v_mention := array(select m.id from unnest(p_scope.m_id, p_scope.m_entity) as m (id, entity_id)
                           where entity_id in (select unnest(v_entity)));
        return query
        with line as materialized (
            select f.n, f.id, e.name, coalesce(e.type, ''), coalesce(d.description, ''),
                   (line_bytes(array[e.name, e.type]) - 40 + coalesce(d.tokens, 0))::integer as tokens
            from unnest(v_entity) with ordinality as f (id, n) join name_entities(v_entity, v_mention) e using (id)
            left join describe('entity', v_entity, v_mention) d on d.owner = f.id
        )
        select (line).* from (select line, sum(line.tokens) over (order by line.n) as total from line) running
        where total <= p_room order by (line).n;
    end if;
end $f$;
comment on function entity_rows(bigint[], integer, scope) is
    'What is told of entities, in their order, as many as there is room for tokens';

create or replace function relation_rows(p_relation bigint[], p_room integer, p_scope scope)
returns table (
    n bigint, id bigint, name text, target text, keywords text[], description text, weight real, tokens integer)
language plpgsql stable rows 100
set search_path from current
as $f$
#variable_conflict use_column
declare
    v_relation constant bigint[] := p_relation[:p_room / 24];
    v_fact bigint[];
    v_end bigint[];
    v_mention bigint[];
begin
    if p_scope.chunk is null then
        return query
        select f.n, r.id, least(s.name collate "C", t.name collate "C"),
               greatest(s.name collate "C", t.name collate "C"), r.keywords, r.description, r.weight, r.tokens
        from (select u.n, u.id, sum(r.tokens) over (order by u.n) as total
              from unnest(p_relation) with ordinality as u (id, n) join relation r using (id)) f
        join relation r using (id) join entity s on s.id = r.source join entity t on t.id = r.target
        where total <= p_room order by f.n;
    else
        v_fact := array(select f.id from unnest(p_scope.f_id, p_scope.f_relation) as f (id, relation_id)
                        where relation_id in (select unnest(v_relation)));
        v_end := array(select unnest(array[e.source, e.target])
                       from unnest(p_scope.e_relation, p_scope.e_source, p_scope.e_target) as e (id, source, target)
                       where id in (select unnest(v_relation)));
        v_mention := array(select m.id from unnest(p_scope.m_id, p_scope.m_entity) as m (id, entity_id)
                           where entity_id in (select unnest(v_end)));
        return query
        with end_name as materialized (
            select id, name from name_entities(v_end, v_mention)
        ), line as materialized (
            select f.n, f.id, least(s.name collate "C", t.name collate "C"),
                   greatest(s.name collate "C", t.name collate "C"), coalesce(k.keywords, '{}'), d.description,
                   e.weight::real, (line_bytes(array[s.name, t.name]) - 40 + d.tokens)::integer as tokens
            from unnest(v_relation) with ordinality as f (id, n)
            join unnest(p_scope.e_relation, p_scope.e_source, p_scope.e_target, p_scope.e_weight)
                 as e (id, source, target, weight) using (id)
            join describe('relation', v_relation, v_fact) d on d.owner = f.id
            left join relation_keywords(v_relation, v_fact) k on k.relation_id = f.id
            join end_name s on s.id = e.source join end_name t on t.id = e.target
        )
        select (line).* from (select line, sum(line.tokens) over (order by line.n) as total from line) running
        where total <= p_room order by (line).n;
    end if;
end $f$;
comment on function relation_rows(bigint[], integer, scope) is
    'What is told of relations, in their order, as many as there is room for tokens; name and target are their ends '
    'in the order of "C"';
