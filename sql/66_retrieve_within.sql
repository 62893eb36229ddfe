-- The search under a filter: the rules of find_graph, rank_chunks and find_chunks over the graph that the passages in scope state, and
-- over nothing else. No profile is read, neither vector nor text, for it mixes documents: entities are seeded by names, by the facts
-- nearest to the question and by passages; names, types, descriptions, weights and counts are made anew of what these passages say.
-- What the passages state is read once, as parallel arrays (load_scope): m_ mentions · f_ facts, with their nearness to each vector ·
-- e_ relations with the weight that these facts give them. Plans are made for the arrays at hand, whose lengths decide.

create or replace function load_scope(
    p_chunk bigint[], p_graph boolean, p_question halfvec, p_low halfvec, p_high halfvec,
    out chunk bigint[], out near double precision[], out near_low double precision[],
    out m_id bigint[], out m_entity bigint[], out m_chunk bigint[],
    out f_id bigint[], out f_chunk bigint[], out f_relation bigint[], out f_near double precision[], out f_low double precision[],
    out f_high double precision[],
    out e_relation bigint[], out e_source bigint[], out e_target bigint[], out e_weight double precision[])
language plpgsql stable
set search_path from current
set plan_cache_mode = force_custom_plan
set jit = off
as $f$
begin
    select array_agg(c.id), array_agg(1 - (v.embedding <=> p_question)), array_agg(1 - (v.embedding <=> p_low)) into chunk, near, near_low
    from unnest(p_chunk) as c (id) left join chunk_vector v on v.chunk_id = c.id;
    if not p_graph then
        return;
    end if;
    select array_agg(m.id), array_agg(m.entity_id), array_agg(m.chunk_id) into m_id, m_entity, m_chunk
    from mention m where m.chunk_id = any (p_chunk);
    select array_agg(f.id), array_agg(f.chunk_id), array_agg(f.relation_id), array_agg(1 - (v.embedding <=> p_question)),
           array_agg(1 - (v.embedding <=> p_low)), array_agg(1 - (v.embedding <=> p_high))
    into f_id, f_chunk, f_relation, f_near, f_low, f_high
    from fact f left join fact_vector v on v.fact_id = f.id where f.chunk_id = any (p_chunk);
    select array_agg(w.relation_id), array_agg(w.source), array_agg(w.target), array_agg(w.weight)
    into e_relation, e_source, e_target, e_weight
    from (
        select t.relation_id, t.source, t.target, sum(t.strength)::real as weight
        from (
            select f.relation_id, r.source, r.target, max(f.strength::double precision) as strength
            from fact f join chunk c on c.id = f.chunk_id join relation r on r.id = f.relation_id
            where f.chunk_id = any (p_chunk) group by f.relation_id, r.source, r.target, c.sha256
        ) t
        group by t.relation_id, t.source, t.target
    ) w;
end $f$;
comment on function load_scope(bigint[], boolean, halfvec, halfvec, halfvec) is
    'The nearness of chunks to a question and, with p_graph, what they state: mentions, facts with their nearness, relations';

-- find_graph_within: entities and relations, best first, not yet cut. Channels in turn: exact names, facts, similar names; the entities
-- of the nearest passages follow where these are fewer than p_top_k.
create or replace function find_graph_within(
    p_keys text[], p_similar text[], p_mode text, p_top_k integer, p_threshold real, p_degree_cap integer, p_hops integer,
    p_chunk bigint[], p_near_low double precision[], p_m_entity bigint[], p_m_chunk bigint[],
    p_f_id bigint[], p_f_relation bigint[], p_f_low double precision[], p_f_high double precision[],
    p_e_relation bigint[], p_e_source bigint[], p_e_target bigint[], p_e_weight double precision[])
returns table (layer text, n bigint, id bigint, score real, why text)
language plpgsql stable rows 200
set search_path from current
set plan_cache_mode = force_custom_plan
set jit = off
as $f$
#variable_conflict use_column
begin
    return query
    with recursive allowed as materialized (
        select distinct entity_id from unnest(p_m_entity) as m (entity_id)
    ), near as materialized (
        select e.entity_id, max(cos) as cos, row_number() over (order by max(cos) desc, e.entity_id) as n
        from (select id, cos from unnest(p_f_id, p_f_low) as f (id, cos)
              where cos >= p_threshold and p_mode <> 'global' order by cos desc, id limit p_top_k) f
        join fact_entity e on e.fact_id = f.id group by e.entity_id
    ), named as materialized (
        select a.entity_id, min(k.n) as n
        from unnest(p_keys) with ordinality as k (key, n) join entity_alias a using (key) join allowed using (entity_id)
        where p_mode <> 'global' group by a.entity_id
    ), similar_name as materialized (
        select a.entity_id, min(k.n * 3 + a.n) as n
        from unnest(p_similar) with ordinality as k (key, n)
        cross join lateral (
            select entity_id, row_number() over (order by similarity(key, k.key) desc, key) as n
            from (select * from entity_alias where key % k.key limit 1000) s join allowed using (entity_id)
        ) a
        where a.n <= 3 and p_mode <> 'global'
          and not exists (select from entity_alias x join allowed using (entity_id) where x.key = k.key)
        group by a.entity_id
    ), passage as materialized (
        select m.entity_id, row_number() over (order by min(c.n), m.entity_id) as n
        from (select id, row_number() over (order by cos desc, id) as n from unnest(p_chunk, p_near_low) as c (id, cos)
              where cos >= p_threshold and p_mode <> 'global' order by 2 limit 5) c
        join unnest(p_m_entity, p_m_chunk) as m (entity_id, chunk_id) on m.chunk_id = c.id group by m.entity_id
    ), seed as materialized (
        select entity_id, row_number() over (order by min(place), entity_id) as n, max(cos) as cos, string_agg(channel, '+' order by side) as why
        from (
            select entity_id, n * 3 as place, null::double precision as cos, 'name' as channel, 0 as side
            from (select entity_id, row_number() over (order by n) as n from named) t
            union all
            select entity_id, n * 3 + 1, cos, 'fact', 1 from near where n <= p_top_k
            union all
            select entity_id, n * 3 + 2, null, 'similar name', 2
            from (select entity_id, row_number() over (order by n) as n from similar_name) t
            union all
            select entity_id, 1000000 + n, null, 'passage', 3 from passage
        ) c
        group by entity_id
    ), edge as materialized (  -- the first hop needs those of the seeds only
        select *, row_number() over (partition by entity_id order by weight desc, relation_id) as j
        from unnest(p_e_source || p_e_target, p_e_relation || p_e_relation, p_e_target || p_e_source, p_e_weight || p_e_weight)
             as e (entity_id, relation_id, other_id, weight)
        where p_hops > 1 or entity_id in (select entity_id from seed where n <= p_top_k)
    ), walk as (
        select e.relation_id, e.other_id, 1 as depth, e.j, seed.n
        from seed join edge e using (entity_id) where seed.n <= p_top_k and e.j <= least(p_degree_cap, 1000)
        union
        select e.relation_id, e.other_id, w.depth + 1, e.j, w.n
        from walk w join edge e on e.entity_id = w.other_id
        where w.depth < p_hops and w.j <= 8
          and e.j <= least(p_degree_cap, greatest(2, least(p_degree_cap, 1000) >> (2 * w.depth)))
    ), local_relation as materialized (
        select relation_id, row_number() over (order by min(depth), min(j), min(n), relation_id) as n from walk group by relation_id
    ), neighbour as materialized (
        select other_id as entity_id, row_number() over (order by min(depth), min(j), min(n), other_id) as n from walk group by other_id
    ), global_relation as materialized (
        select s.relation_id, e.source, e.target, s.cos, s.n
        from (
            select relation_id, max(cos) as cos, row_number() over (order by max(cos) desc, relation_id) as n
            from unnest(p_f_relation, p_f_high) as f (relation_id, cos)
            where relation_id is not null and cos >= p_threshold and p_mode <> 'local' group by relation_id
        ) s
        join unnest(p_e_relation, p_e_source, p_e_target) as e (relation_id, source, target) using (relation_id)
        where s.n <= p_top_k
    ), entities as (
        select entity_id, row_number() over (order by min(place), entity_id) as n, max(cos)::real as score,
               string_agg(distinct channel, '+') as why
        from (
            select entity_id, n * 2 as place, cos, why as channel from seed where n <= p_top_k
            union all
            select entity_id, row_number() over (order by place) * 2 + 1, null, 'relation'
            from (select entity_id, min(place) as place
                  from (select source as entity_id, n * 2 as place from global_relation
                        union all select target, n * 2 + 1 from global_relation) e group by entity_id) e
            union all
            select entity_id, 1000000 + n, null, 'hop' from neighbour where n <= 4 * p_top_k
        ) u
        group by entity_id
    ), relations as (
        select relation_id, row_number() over (order by min(place), relation_id) as n, max(cos)::real as score,
               string_agg(distinct channel, '+') as why
        from (
            select relation_id, n * 2 as place, null::double precision as cos, 'hop' as channel from local_relation
            union all
            select relation_id, n * 2 + 1, cos, 'fact' from global_relation
        ) u
        group by relation_id order by 2 limit 1000
    )
    select 'entity', n, entity_id, score, why from entities
    union all
    select 'relation', n, relation_id, score, why from relations;
end $f$;
comment on function find_graph_within(text[], text[], text, integer, real, integer, integer, bigint[], double precision[], bigint[], bigint[],
    bigint[], bigint[], double precision[], double precision[], bigint[], bigint[], bigint[], double precision[]) is
    'find_graph under a filter: entities and relations of the passages in scope, seeded by names, facts and passages, best first';

-- describe_entities_within, describe_relations_within: as compose_entities and compose_relations, of these mentions and facts alone. No
-- summary is used. tokens is an upper bound for the line in a context: parts are counted, joints and 24 for the names of fields allowed for.
create or replace function describe_entities_within(
    p_entity bigint[], p_m_id bigint[], p_m_entity bigint[], p_fragments integer default 50, p_tokens integer default 1200)
returns table (id bigint, name text, type text, description text, tokens integer)
language sql stable
set search_path from current
set plan_cache_mode = force_custom_plan
as $f$
    with chosen as materialized (
        select array_agg(u.id) as ids from unnest(p_m_id, p_m_entity) as u (id, entity_id) where u.entity_id = any (p_entity)
    ), m as materialized (
        select m.entity_id, m.name, m.type, m.description, m.tokens, d.published_at
        from chosen join mention m on m.id = any (chosen.ids) join chunk c on c.id = m.chunk_id join document d on d.id = c.document_id
    ), names as (
        select distinct on (entity_id) entity_id, name from m group by entity_id, name order by entity_id, count(*) desc, name collate "C"
    ), types as (
        select distinct on (entity_id) entity_id, type
        from m where type <> '' group by entity_id, type order by entity_id, count(*) desc, type collate "C"
    ), fragments as (
        select entity_id, description, tokens, published_at,
               row_number() over w as n, sum(tokens) over (w rows unbounded preceding) as total
        from (
            select entity_id, description, max(published_at) as published_at, max(tokens) as tokens
            from m where description <> '' group by entity_id, description
        ) f
        window w as (partition by entity_id order by published_at desc nulls last, length(description) desc, description collate "C")
    ), descriptions as (
        select entity_id, string_agg(dated(description, published_at), E'\n' order by published_at nulls first, n) as description,
               sum(tokens + 16) as tokens
        from fragments where n <= p_fragments and (total <= p_tokens or n = 1) group by entity_id
    )
    select n.entity_id, n.name, coalesce(t.type, ''), coalesce(d.description, ''),
           (line_bytes(array[n.name, t.type]) - 40 + coalesce(d.tokens + octet_length(to_json(d.description)::text) - octet_length(d.description), 0))::integer
    from names n left join types t using (entity_id) left join descriptions d using (entity_id)
$f$;
comment on function describe_entities_within(bigint[], bigint[], bigint[], integer, integer) is
    'Name, type and description of entities as the given mentions (parallel arrays: mention, entity) alone tell them';

create or replace function name_entities_within(p_entity bigint[], p_m_id bigint[], p_m_entity bigint[])
returns table (id bigint, name text)
language sql stable
set search_path from current
set plan_cache_mode = force_custom_plan
as $f$
    with chosen as materialized (
        select array_agg(u.id) as ids from unnest(p_m_id, p_m_entity) as u (id, entity_id) where u.entity_id = any (p_entity)
    )
    select distinct on (m.entity_id) m.entity_id, m.name
    from chosen join mention m on m.id = any (chosen.ids) group by m.entity_id, m.name order by m.entity_id, count(*) desc, m.name collate "C"
$f$;
comment on function name_entities_within(bigint[], bigint[], bigint[]) is
    'Names of entities as the given mentions (parallel arrays: mention, entity) most often write them';

create or replace function describe_relations_within(
    p_relation bigint[], p_f_id bigint[], p_f_relation bigint[], p_fragments integer default 50, p_tokens integer default 1200)
returns table (id bigint, keywords text[], description text, tokens integer)
language sql stable
set search_path from current
set plan_cache_mode = force_custom_plan
as $f$
    with chosen as materialized (
        select array_agg(u.id) as ids from unnest(p_f_id, p_f_relation) as u (id, relation_id) where u.relation_id = any (p_relation)
    ), f as materialized (
        select f.relation_id, f.text, f.keywords, f.strength, f.tokens, d.published_at
        from chosen join fact f on f.id = any (chosen.ids) join chunk c on c.id = f.chunk_id join document d on d.id = c.document_id
    ), words as (
        select relation_id, array_agg(distinct keyword collate "C" order by keyword collate "C") as keywords
        from f cross join unnest(f.keywords) as keyword group by relation_id
    ), fragments as (
        select relation_id, text, tokens, published_at, row_number() over w as n, sum(tokens) over (w rows unbounded preceding) as total
        from (
            select relation_id, text, max(published_at) as published_at, max(tokens) as tokens, max(strength) as strength
            from f group by relation_id, text
        ) t
        window w as (partition by relation_id order by published_at desc nulls last, strength desc, length(text) desc, text collate "C")
    ), descriptions as (
        select relation_id, string_agg(dated(text, published_at), E'\n' order by published_at nulls first, n) as description,
               sum(tokens + 16) as tokens
        from fragments where n <= p_fragments and (total <= p_tokens or n = 1) group by relation_id
    )
    select d.relation_id, coalesce(k.keywords, '{}'), d.description,
           (d.tokens + octet_length(to_json(d.description)::text) - octet_length(d.description))::integer
    from descriptions d left join words k using (relation_id)
$f$;
comment on function describe_relations_within(bigint[], bigint[], bigint[], integer, integer) is
    'Keywords and description of relations as the given facts (parallel arrays: fact, relation) alone tell them; tokens without the names';

-- rank_chunks_within: rank_chunks over the passages in scope: the same recipe and the same figures
create or replace function rank_chunks_within(
    p_word text[], p_part integer[], p_name text[], p_lexical double precision, p_nearness double precision,
    p_chunk bigint[], p_near double precision[], p_m_entity bigint[], p_m_chunk bigint[],
    p_f_id bigint[], p_f_chunk bigint[], p_f_near double precision[],
    p_e_source bigint[], p_e_target bigint[], p_e_relation bigint[], p_e_weight double precision[],
    p_iterations integer default 4, p_passages double precision default .4, p_names double precision default .2,
    p_support double precision default .3, p_tau double precision default .015, p_damping double precision default .6,
    p_flat double precision default .9, p_sharp double precision default 1.1, p_most double precision default .8)
returns table (chunk_id bigint, score double precision, walked double precision, near double precision)
language plpgsql stable rows 200
set search_path from current
set plan_cache_mode = force_custom_plan
set jit = off
as $f$
#variable_conflict use_column
declare
    v_passage bigint[];
    v_near double precision[];
    v_nearness double precision[];
    v_contrast double precision[];
    v_share double precision;
    v_seed bigint[];
    v_seed_weight double precision[];
    v_node bigint[];
    v_entities integer;
    v_restart double precision[];
    v_from integer[];
    v_to integer[];
    v_weight double precision[];
begin
    -- 1. passages
    with candidate as materialized (
        select * from unnest(p_chunk, p_near) as c (chunk_id, cos) where cos is not null
    ), dense as materialized (
        select chunk_id, cos from candidate order by cos desc, chunk_id limit 100
    ), lexical as materialized (
        select chunk_id, p_lexical * (score / max(score) over () + part) as words
        from search_words_within(p_word, p_chunk, 100, p_part) where p_lexical > 0
    ), passage as (
        select d.chunk_id, d.cos, coalesce(l.words, 0) as words from dense d left join lexical l using (chunk_id)
        union all
        select chunk_id, c.cos, l.words from lexical l join candidate c using (chunk_id) where chunk_id not in (select chunk_id from dense)
    )
    select array_agg(chunk_id order by near desc, chunk_id), array_agg(near order by near desc, chunk_id),
           array_agg(cos + words order by near desc, chunk_id), array[contrast((select array_agg(cos order by cos desc) from dense))]
    into v_passage, v_near, v_nearness, v_contrast
    from (select *, cos + words / 2 as near from passage) p;
    if v_passage is null then
        return;
    end if;

    -- 2. facts
    with fact_near as materialized (
        select * from unnest(p_f_id, p_f_chunk, p_f_near) as f (fact_id, chunk_id, cos)
        where cos is not null order by cos desc, fact_id limit 100
    ), passage as materialized (
        select * from unnest(v_passage, v_near) as p (chunk_id, near)
    ), candidate as materialized (
        select * from unnest(p_chunk, p_near) as c (chunk_id, cos)
    ), best as materialized (
        select s.fact_id, s.cos + p_support * coalesce(p.near, c.cos, 0) as score
        from fact_near s left join passage p using (chunk_id) left join candidate c using (chunk_id) order by 2 desc, 1 limit 12
    ), weighted as (
        select fact_id, exp((score - max(score) over ()) / p_tau) as w from best
    ), part as (
        select w.fact_id, w.w, e.entity_id, count(*) over (partition by w.fact_id) as parts
        from weighted w cross join lateral (select distinct entity_id from fact_entity where fact_id = w.fact_id) e
    ), mentioned as materialized (
        select entity_id, count(distinct chunk_id) as mentions from unnest(p_m_entity, p_m_chunk) as m (entity_id, chunk_id)
        group by entity_id
    ), stating as materialized (
        select p.entity_id, sum(p.w / p.parts / m.mentions) as w from part p join mentioned m using (entity_id) group by p.entity_id
    ), named as materialized (
        select distinct m.entity_id, 1.0 / m.mentions as w
        from unnest(p_name) as k (key) join entity_alias a using (key) join mentioned m using (entity_id)
    ), seed as (
        select entity_id, sum(w) as w
        from (
            select entity_id, w / sum(w) over () * case when exists (select from named) then 1 - p_names else 1 end as w from stating
            union all
            select entity_id, w / sum(w) over () * case when exists (select from stating) then p_names else 1 end from named
        ) u
        group by entity_id
    )
    select array_agg(entity_id order by w desc, entity_id), array_agg(w order by w desc, entity_id),
           v_contrast || contrast((select array_agg(cos order by cos desc) from fact_near))
    into v_seed, v_seed_weight, v_contrast from seed;
    v_share := coalesce(p_nearness, (
        select case when c <= p_flat then p_most when c < p_sharp then p_most * (p_sharp - c) / (p_sharp - p_flat) else 0 end
        from greatest(v_contrast[1], v_contrast[2]) as c));

    -- 3. the subgraph
    with mention as materialized (
        select distinct * from unnest(p_m_entity, p_m_chunk) as m (entity_id, chunk_id)
    ), adjacency as materialized (
        select * from unnest(p_e_source || p_e_target, p_e_relation || p_e_relation, p_e_target || p_e_source, p_e_weight || p_e_weight)
                      as e (entity_id, relation_id, other_id, weight)
    ), seed as materialized (
        select * from unnest(v_seed, v_seed_weight) as s (id, w)
    ), first_passage as materialized (
        select * from unnest(v_passage[:30]) as p (id)
    ), passage as materialized (
        select id, row_number() over (order by id) as i from (
            select id from first_passage
            union
            select chunk_id from (
                select m.chunk_id, row_number() over (partition by m.entity_id order by c.cos desc, m.chunk_id) as n
                from (select m.*, row_number() over (partition by m.entity_id order by m.chunk_id) as i
                      from mention m join seed on seed.id = m.entity_id) m
                join unnest(p_chunk, p_near) as c (chunk_id, cos) using (chunk_id)
                where m.i <= 50 and c.cos is not null) c
            where n <= 5
        ) u
    ), node as materialized (
        select id, row_number() over (order by id) as i from (
            select id from seed
            union
            select m.entity_id from first_passage p join mention m on m.chunk_id = p.id
            union
            select other_id from (
                select a.other_id, row_number() over (partition by a.entity_id order by a.weight desc, a.relation_id) as j
                from seed join adjacency a on a.entity_id = seed.id) a
            where j <= 10
        ) u
    ), size as materialized (
        select count(*) as n from node
    ), hop as materialized (
        select node.i, a.other_id, a.weight, row_number() over (partition by a.entity_id order by a.weight desc, a.relation_id) as j
        from node join adjacency a on a.entity_id = node.id
    ), linked as materialized (
        select node.i as a, p.i + size.n as b
        from passage p join mention m on m.chunk_id = p.id join node on node.id = m.entity_id cross join size
    ), edge as materialized (
        select a, b, w / sum(w) over (partition by a) as w from (
            select h.i as a, node.i as b, h.weight as w from hop h join node on node.id = h.other_id where h.j <= 32
            union all select a, b, 1 from linked
            union all select b, a, 1 from linked
        ) u
        where w > 0
    ), restart as (
        select node.i, (1 - p_passages) * s.w as w from seed s join node using (id)
        union all
        select p.i + size.n, p_passages * q.w / sum(q.w) over ()
        from (select id, exp((near - v_near[1]) / p_tau) as w from unnest(v_passage[:20], v_near[:20]) as q (id, near)) q
        join passage p using (id) cross join size
    )
    select (select array_agg(id order by i) from passage), (select n from size),
           (select array_agg(coalesce(r.w, 0) order by g.i)
            from generate_series(1, (select count(*) from passage) + (select n from size)) as g (i) left join restart r using (i)),
           array_agg(a::integer order by a, b), array_agg(b::integer order by a, b), array_agg(p_damping * w order by a, b)
    into v_node, v_entities, v_restart, v_from, v_to, v_weight from edge;

    -- 4. the walk over it, and the order
    return query select * from walk_chunks(v_passage, v_nearness, v_share, v_node, v_entities, v_restart, v_from, v_to, v_weight,
                                           p_damping, p_iterations);
end $f$;
comment on function rank_chunks_within(text[], integer[], text[], double precision, double precision, bigint[], double precision[], bigint[], bigint[],
    bigint[], bigint[], double precision[], bigint[], bigint[], bigint[], double precision[], integer, double precision, double precision,
    double precision, double precision, double precision, double precision, double precision, double precision) is
    'rank_chunks under a filter: over the passages in scope and what they state, best first';

-- find_chunks_within: find_chunks over the passages in scope
create or replace function find_chunks_within(
    p_word text[], p_part integer[], p_name text[], p_entity bigint[], p_relation bigint[], p_mode text, p_ranking text, p_lexical double precision,
    p_nearness double precision, p_limit integer,
    p_chunk bigint[], p_near double precision[], p_m_entity bigint[], p_m_chunk bigint[],
    p_f_id bigint[], p_f_chunk bigint[], p_f_relation bigint[], p_f_near double precision[],
    p_e_source bigint[], p_e_target bigint[], p_e_relation bigint[], p_e_weight double precision[])
returns table (n bigint, chunk_id bigint, score real, why text)
language plpgsql stable rows 20
set search_path from current
set plan_cache_mode = force_custom_plan
set jit = off
as $f$
#variable_conflict use_column
begin
    if p_mode = 'naive' then
        return query
        select row_number() over (order by cos desc, chunk_id), chunk_id, cos::real, 'vector'
        from unnest(p_chunk, p_near) as c (chunk_id, cos) where cos is not null
        order by 1 limit least(p_limit, 200);
        return;
    end if;
    return query
    with candidate as materialized (
        select * from unnest(p_chunk, p_near) as c (chunk_id, cos)
    ), linked as materialized (
        select m.chunk_id, 'entity' as channel, min(e.n) as item, count(*) as items
        from unnest(p_entity) with ordinality as e (id, n)
        join (select *, row_number() over (partition by entity_id order by chunk_id) as i
              from (select distinct * from unnest(p_m_entity, p_m_chunk) as m (entity_id, chunk_id)) m
             ) m on m.entity_id = e.id and m.i <= 50
        group by m.chunk_id
        union all
        select f.chunk_id, 'relation', min(r.n), count(*)
        from unnest(p_relation) with ordinality as r (id, n)
        join (select *, row_number() over (partition by relation_id order by chunk_id) as i
              from (select distinct relation_id, chunk_id from unnest(p_f_relation, p_f_chunk) as f (relation_id, chunk_id)) f) f
             on f.relation_id = r.id and f.i <= 50
        group by f.chunk_id
    ), graph as materialized (
        select l.chunk_id, c.cos, l.item, l.items, l.why
        from (select chunk_id, min(item) as item, sum(items) as items, string_agg(channel, '+' order by channel) as why
              from linked group by chunk_id) l
        join candidate c using (chunk_id)
    ), dense as materialized (
        select chunk_id, cos from candidate where p_mode = 'mix' and cos is not null order by cos desc, chunk_id limit 200
    ), lexical as materialized (
        select chunk_id, row_number() over () as n from search_words_within(p_word, p_chunk, 200, p_part)
        where p_mode = 'mix' and p_lexical > 0 and p_ranking <> 'pagerank'
    ), walked as materialized (
        select r.*, row_number() over () as n
        from rank_chunks_within(p_word, p_part, p_name, p_lexical, p_nearness, p_chunk, p_near, p_m_entity, p_m_chunk, p_f_id, p_f_chunk, p_f_near,
                                p_e_source, p_e_target, p_e_relation, p_e_weight) r
        where p_ranking = 'pagerank'
    ), placed as (
        select chunk_id, row_number() over (order by cos desc, chunk_id) * 4 as place, 'vector' as channel, cos as score
        from dense where p_ranking <> 'pagerank'
        union all
        select chunk_id, n * 4 + 1, 'words', null from lexical where p_ranking <> 'pagerank'
        union all
        select g.chunk_id, row_number() over (partition by l.channel order by g.cos desc nulls last, g.items desc, g.item, g.chunk_id) * 4
               + case l.channel when 'entity' then 2 else 3 end, l.channel, g.cos
        from graph g join linked l using (chunk_id)
        where p_ranking = 'vector'
          and (l.channel = 'entity' or not exists (select from linked x where x.chunk_id = l.chunk_id and x.channel = 'entity'))
        union all
        select chunk_id, row_number() over (order by items desc, item, cos desc nulls last, chunk_id) * 4 - 1, why, items::double precision
        from graph where p_ranking = 'weight'
        union all
        select w.chunk_id, w.n, 'pagerank', w.score
        from walked w where p_mode = 'mix' or exists (select from graph g where g.chunk_id = w.chunk_id)
        union all
        select chunk_id, 1000000 + row_number() over (order by cos desc nulls last, items desc, item, chunk_id), why, cos
        from graph where p_ranking = 'pagerank'
    )
    select row_number() over (order by min(place), chunk_id), chunk_id,
           (array_agg(score order by place) filter (where score is not null))[1]::real,
           string_agg(distinct channel, '+')
    from placed group by chunk_id order by 1 limit p_limit;
end $f$;
comment on function find_chunks_within(text[], integer[], text[], bigint[], bigint[], text, text, double precision, double precision, integer,
    bigint[], double precision[], bigint[], bigint[], bigint[], bigint[], bigint[], double precision[], bigint[], bigint[], bigint[],
    double precision[]) is
    'find_chunks under a filter: passages in scope behind the entities and relations found, best first';

-- retrieve_within: retrieve under a filter; it is called by retrieve, which has checked mode and ranking
create or replace function retrieve_within(
    p_filter jsonb, p_question halfvec, p_low halfvec, p_high halfvec, p_words text[], p_keys text[], p_similar text[], p_mode text,
    p_top_k integer, p_chunk_top_k integer, p_ranking text, p_threshold real, p_degree_cap integer, p_hops integer,
    p_lexical double precision, p_entity_tokens integer, p_relation_tokens integer, p_total_tokens integer, p_parts integer[],
    p_nearness double precision)
returns table (layer text, rank bigint, id bigint, name text, type text, target text, keywords text[], body text, weight real, tokens integer,
               score real, why text, document_id bigint, uri text, title text, ordinal integer, headings text[], page integer,
               start_char integer, end_char integer)
language plpgsql stable
set search_path from current
set pg_trgm.similarity_threshold = .5
set plan_cache_mode = force_custom_plan
set jit = off
as $f$
#variable_conflict use_column
declare
    s record;
    v_chunk bigint[];
    v_entity bigint[];
    v_score real[];
    v_why text[];
    v_relation bigint[];
    v_relation_score real[];
    v_relation_why text[];
    v_entities bigint[] := '{}';    -- that fit the budget
    v_relations bigint[] := '{}';
    v_tokens bigint := 0;
begin
    v_chunk := scope_chunks(p_filter, p_question, p_mode <> 'naive', p_low, p_high, p_words, p_keys || p_similar, greatest(100, least(p_chunk_top_k, 1000)));
    if v_chunk = '{}' then
        return;
    end if;
    select * into s from load_scope(v_chunk, p_mode <> 'naive', p_question, p_low, p_high);
    if p_mode <> 'naive' then
        select array_agg(g.id order by g.n) filter (where layer = 'entity'),
               array_agg(g.score order by g.n) filter (where layer = 'entity'),
               array_agg(g.why order by g.n) filter (where layer = 'entity'),
               array_agg(g.id order by g.n) filter (where layer = 'relation'),
               array_agg(g.score order by g.n) filter (where layer = 'relation'),
               array_agg(g.why order by g.n) filter (where layer = 'relation')
        into v_entity, v_score, v_why, v_relation, v_relation_score, v_relation_why
        -- no line has less than 24 tokens: what cannot fit is not described
        from (select * from find_graph_within(p_keys, p_similar, p_mode, p_top_k, p_threshold, p_degree_cap, p_hops, s.chunk, s.near_low, s.m_entity,
                               s.m_chunk, s.f_id, s.f_relation, s.f_low, s.f_high, s.e_relation, s.e_source, s.e_target, s.e_weight) t
              where t.n <= case layer when 'entity' then p_entity_tokens else p_relation_tokens end / 24) g;
        for layer, rank, id, name, type, body, tokens, score, why in
            select 'entity', n, id, name, type, description, tokens, score, why
            from (select f.score, f.why, e.*, row_number() over w as n, sum(e.tokens) over w as total
                  from unnest(v_entity, v_score, v_why) with ordinality as f (id, score, why, n)
                  join describe_entities_within(v_entity, s.m_id, s.m_entity) e using (id) window w as (order by f.n)) t
            where total <= p_entity_tokens order by n
        loop
            return next;
            v_entities := v_entities || id;
            v_tokens := v_tokens + tokens;
        end loop;
        type := null;
        for layer, rank, id, name, target, keywords, body, weight, tokens, score, why in
            with ends as materialized (
                select * from name_entities_within(
                    array(select unnest(array[e.source, e.target]) from unnest(s.e_relation, s.e_source, s.e_target) as e (id, source, target)
                          where e.id = any (v_relation)), s.m_id, s.m_entity)
            )
            select 'relation', n, id, name, target, keywords, description, weight, tokens, score, why
            from (
                select t.*, row_number() over w as n, sum(tokens) over w as total
                from (
                    select f.n as place, f.id, least(a.name collate "C", b.name collate "C") as name,
                           greatest(a.name collate "C", b.name collate "C") as target, r.keywords, r.description, e.weight::real as weight,
                           r.tokens + line_bytes(array[a.name, b.name]) - 40 as tokens, f.score, f.why
                    from unnest(v_relation, v_relation_score, v_relation_why) with ordinality as f (id, score, why, n)
                    join unnest(s.e_relation, s.e_source, s.e_target, s.e_weight) as e (id, source, target, weight) using (id)
                    join describe_relations_within(v_relation, s.f_id, s.f_relation) r using (id)
                    join ends a on a.id = e.source
                    join ends b on b.id = e.target
                ) t
                window w as (order by place)
            ) t
            where total <= p_relation_tokens order by n
        loop
            return next;
            v_relations := v_relations || id;
            v_tokens := v_tokens + tokens;
        end loop;
    end if;
    return query
    select 'chunk', t.n, t.id, null, null, null, t.keywords, t.body, null::real, t.tokens, t.score, t.why,
           t.document_id, t.uri, t.title, t.ordinal, t.headings, t.page, t.start_char, t.end_char
    from (
        select f.n, f.score, f.why, c.*, d.uri, d.title, sum(c.tokens) over (order by f.n) as total
        from find_chunks_within(p_words, p_parts, p_similar, v_entities, v_relations, p_mode,
                                case when p_question is null and p_ranking <> 'weight' then 'weight' else p_ranking end,
                                p_lexical, p_nearness, p_chunk_top_k, s.chunk, s.near, s.m_entity, s.m_chunk, s.f_id, s.f_chunk,
                                s.f_relation, s.f_near, s.e_source, s.e_target, s.e_relation, s.e_weight) f
        join chunk c on c.id = f.chunk_id join document d on d.id = c.document_id
    ) t
    where t.total <= p_total_tokens - v_tokens
    order by t.n;
end $f$;
comment on function retrieve_within(jsonb, halfvec, halfvec, halfvec, text[], text[], text[], text, integer, integer, text, real, integer,
    integer, double precision, integer, integer, integer, integer[], double precision) is
    'retrieve under a filter: rows made of allowed documents alone';
