-- Search: question, low-level and high-level vectors in, ranked rows of three layers out, one call.
-- Inner limits are constants where an index is read (a limit parameter makes a generic plan expect a tenth of the table); row_number trims.

-- find_graph: entities and relations for a question, best first, each layer cut to its token budget.
-- Seeds: entities by vector, by exact name and by similar name, in turn; relations by vector. One hop (or more) through adjacency,
-- p_degree_cap edges an entity at most. Local and global lists are merged in turn, so that a cut starves neither.
-- Other than LightRAG: seeds are exact names and aliases, vectors and similar names (three for an unknown one) in turn, p_top_k in all
-- (there: vectors alone); of a seed the heaviest edges are read up to the cap, the nearest hop and each seed's heaviest first (there: all,
-- by the degrees of both ends); further hops on request, along 8 edges and with a quarter of the cap each; the entities walked to follow
-- the others, 4 * p_top_k at most (there: none); relations are told apart by their ends in any order, 1,000 at most.
create or replace function find_graph(
    p_low halfvec, p_high halfvec, p_keys text[], p_similar text[], p_mode text, p_top_k integer, p_threshold real, p_degree_cap integer,
    p_hops integer, p_entity_tokens integer, p_relation_tokens integer)
returns table (layer text, n bigint, id bigint, score real, why text, tokens integer)
language plpgsql stable rows 200
set search_path from current
set hnsw.ef_search = 100
set plan_cache_mode = force_generic_plan
set jit = off
as $f$
#variable_conflict use_column
begin
    perform set_config('hnsw.ef_search', least(1000, greatest(2 * p_top_k, search_breadth(100, 'entity_vector', 'relation_vector')))::text, true);
    return query
    with recursive near as materialized (
        select entity_id, cos, row_number() over (order by cos desc, entity_id) as n
        from (select entity_id, 1 - (embedding <=> p_low) as cos from entity_vector
              where p_low is not null and p_mode <> 'global' order by embedding <=> p_low limit 500) s
        where cos >= p_threshold
    ), named as materialized (
        select a.entity_id, min(k.n) as n
        from unnest(p_keys) with ordinality as k (key, n) join entity_alias a using (key)
        where p_mode <> 'global' group by a.entity_id
    ), similar_name as materialized (
        select a.entity_id, min(k.n * 3 + a.n) as n
        from unnest(p_similar) with ordinality as k (key, n)
        cross join lateral (
            select entity_id, row_number() over (order by similarity(key, k.key) desc, key) as n
            from entity_alias where key % k.key limit 100
        ) a
        where a.n <= 3 and p_mode <> 'global' and not exists (select from entity_alias x where x.key = k.key)
        group by a.entity_id
    ), seed as materialized (
        select entity_id, row_number() over (order by min(place), entity_id) as n, max(cos) as cos, string_agg(channel, '+' order by side) as why
        from (
            select entity_id, n * 3 as place, null::double precision as cos, 'name' as channel, 0 as side
            from (select entity_id, row_number() over (order by n) as n from named) t
            union all
            select entity_id, n * 3 + 1, cos, 'vector', 1 from near where n <= p_top_k
            union all
            select entity_id, n * 3 + 2, null, 'similar name', 2
            from (select entity_id, row_number() over (order by n) as n from similar_name) t
        ) c
        group by entity_id
    ), walk as (
        select a.relation_id, a.other_id, 1 as depth, a.j, seed.n
        from seed cross join lateral (
            select relation_id, other_id, row_number() over (order by weight desc, relation_id) as j
            from (select relation_id, other_id, weight from adjacency where entity_id = seed.entity_id
                  order by weight desc, relation_id limit least(p_degree_cap, 1000)) e
        ) a
        where seed.n <= p_top_k
        union
        select a.relation_id, a.other_id, w.depth + 1, a.j, w.n
        from walk w cross join lateral (
            select relation_id, other_id, row_number() over (order by weight desc, relation_id) as j
            from (select relation_id, other_id, weight from adjacency where entity_id = w.other_id
                  order by weight desc, relation_id
                  limit least(p_degree_cap, greatest(2, least(p_degree_cap, 1000) >> (2 * w.depth)))) e
        ) a
        where w.depth < p_hops and w.j <= 8
    ), local_relation as materialized (
        select relation_id, row_number() over (order by min(depth), min(j), min(n), relation_id) as n from walk group by relation_id
    ), neighbour as materialized (
        select other_id as entity_id, row_number() over (order by min(depth), min(j), min(n), other_id) as n from walk group by other_id
    ), global_relation as materialized (
        select s.relation_id, r.source, r.target, s.cos, s.n
        from (
            select relation_id, cos, row_number() over (order by cos desc, relation_id) as n
            from (select relation_id, 1 - (embedding <=> p_high) as cos from relation_vector
                  where p_high is not null and p_mode <> 'local' order by embedding <=> p_high limit 500) v
            where cos >= p_threshold
        ) s
        join relation r on r.id = s.relation_id
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
            select relation_id, n * 2 + 1, cos, 'vector' from global_relation
        ) u
        group by relation_id order by 2 limit 1000
    )
    (select 'entity', n, entity_id, score, why, tokens
     from (select u.*, e.tokens, sum(e.tokens) over (order by u.n) as total from entities u join entity e on e.id = u.entity_id) t
     where total <= p_entity_tokens)
    union all
    (select 'relation', n, relation_id, score, why, tokens
     from (select u.*, r.tokens, sum(r.tokens) over (order by u.n) as total from relations u join relation r on r.id = u.relation_id) t
     where total <= p_relation_tokens);
end $f$;
comment on function find_graph(halfvec, halfvec, text[], text[], text, integer, real, integer, integer, integer, integer) is
    'Entities and relations for the vectors and names of a question, best first, within token budgets. Other than LightRAG, at most
p_degree_cap edges of an entity are read, by weight, and taken in turn over the seeds; neighbours follow the seeds';

-- walk_chunks: the last steps of rank_chunks: the walk over a subgraph, and both orders on one scale. p_restart is by node (entities
-- first, then the passages p_node); edges carry the probability to be taken; p_nearness is of the candidates p_passage.
create or replace function walk_chunks(
    p_passage bigint[], p_nearness double precision[], p_share double precision, p_node bigint[], p_entities integer,
    p_restart double precision[], p_from integer[], p_to integer[], p_weight double precision[], p_damping double precision,
    p_iterations integer)
returns table (chunk_id bigint, score double precision, walked double precision, near double precision)
language plpgsql stable rows 200
set search_path from current
set plan_cache_mode = force_generic_plan
set jit = off
set enable_mergejoin = off
as $f$
#variable_conflict use_column
declare
    v_x double precision[] := p_restart;
    v_y double precision[];
begin
    for i in 1..cardinality(p_restart) loop
        p_restart[i] := (1 - p_damping) * p_restart[i];
    end loop;
    for step in 1..p_iterations loop
        v_y := p_restart;
        for i in 1..coalesce(cardinality(p_from), 0) loop
            v_y[p_to[i]] := v_y[p_to[i]] + p_weight[i] * v_x[p_from[i]];
        end loop;
        v_x := v_y;
    end loop;

    -- from the best to the 100th: logarithms of what the walk brought, and nearness
    return query
    with reached as (
        select id, ln(x) as x from unnest(p_node, v_x[p_entities + 1:]) as u (id, x) where x > 0
    ), walk as (
        select id, coalesce((x - worst) / nullif(best - worst, 0), 1) as share
        from reached, (select max(x) as best, min(x) as worst from (select x from reached order by x desc limit 100) t) r
    ), candidate as (
        select * from unnest(p_passage, p_nearness) as u (id, near)
    ), close as (
        select id, coalesce((near - worst) / nullif(best - worst, 0), 1) as share, near
        from candidate, (select max(near) as best, min(near) as worst from (select near from candidate order by near desc limit 100) t) r
    )
    select id, (1 - p_share) * greatest(w.share, 0) + p_share * greatest(c.share, 0) as score,
           nullif(v_x[p_entities + array_position(p_node, id)], 0), c.near
    from walk w full join close c using (id)
    order by 2 desc, 4 desc nulls last, 1;
end $f$;
comment on function walk_chunks(bigint[], double precision[], double precision, bigint[], integer, double precision[], integer[],
    integer[], double precision[], double precision, integer) is
    'The walk of rank_chunks over a subgraph of entities and passages, and the order that comes of it';

-- rank_chunks: passages by personalised PageRank over a bounded neighbourhood of the question, after HippoRAG 2 (Gutierrez et al. 2025).
-- Facts near the question say which entities matter, names in it have a share, and passages near it by vector and words have theirs;
-- the walk runs over entity-entity edges (weight) and entity-passage edges (1), row-normalised, for a fixed number of steps. Where
-- neither passages nor facts stand out for the question (see contrast), a bridge from them leads anywhere: there the passages' own
-- nearness decides.
--   p_name keys of the names · p_lexical share of BM25 in a passage's nearness, half of it where nearness only starts the walk ·
--   p_nearness share of nearness in the order, 0 to 1; null: p_most where the contrast is p_flat or less, 0 from p_sharp on and in a
--   corpus too small to have one · p_passages restart mass of passages, p_names of the rest that of names, rare ones more ·
--   p_support share of its passage in a fact's score · p_tau softmax temperature · p_damping probability to walk on
create or replace function rank_chunks(
    p_question halfvec, p_word text[], p_part integer[] default '{}', p_name text[] default '{}',
    p_lexical double precision default .2, p_nearness double precision default null, p_iterations integer default 4,
    p_passages double precision default .4, p_names double precision default .2, p_support double precision default .3,
    p_tau double precision default .015, p_damping double precision default .6, p_flat double precision default .9,
    p_sharp double precision default 1.1, p_most double precision default .8)
returns table (chunk_id bigint, score double precision, walked double precision, near double precision)
language plpgsql stable rows 200
set search_path from current
set hnsw.ef_search = 100
set plan_cache_mode = force_generic_plan
set jit = off
set enable_mergejoin = off
as $f$
#variable_conflict use_column
declare
    v_passage bigint[];       -- candidate passages, where the walk starts from them best first, and their nearness
    v_near double precision[];
    v_nearness double precision[];
    v_contrast double precision[];
    v_share double precision;
    v_seed bigint[];          -- seed entities and their weights
    v_seed_weight double precision[];
    v_node bigint[];          -- passages of the subgraph; as nodes they follow its v_entities entities
    v_entities integer;
    v_restart double precision[];
    v_from integer[];
    v_to integer[];
    v_weight double precision[];
begin
    -- 1. passages: the 100 nearest by vector and the 100 best by words, one score
    perform set_config('hnsw.ef_search', search_breadth(100, 'chunk_vector')::text, true);
    with dense as materialized (
        select chunk_id, 1 - (embedding <=> p_question) as cos from chunk_vector order by embedding <=> p_question limit 100
    ), lexical as materialized (
        select chunk_id, p_lexical * (score / max(score) over () + part) as words
        from search_words(p_word, 100, 300, p_part) where p_lexical > 0
    ), passage as (
        select d.chunk_id, d.cos, coalesce(l.words, 0) as words from dense d left join lexical l using (chunk_id)
        union all
        select chunk_id, 1 - (v.embedding <=> p_question), l.words from lexical l join chunk_vector v using (chunk_id)
        where chunk_id not in (select chunk_id from dense)
    )
    select array_agg(chunk_id order by near desc, chunk_id), array_agg(near order by near desc, chunk_id),
           array_agg(cos + words order by near desc, chunk_id), array[contrast((select array_agg(cos order by cos desc) from dense))]
    into v_passage, v_near, v_nearness, v_contrast
    from (select *, cos + words / 2 as near from passage) p;
    if v_passage is null then
        return;
    end if;

    -- 2. facts near the question, helped by the passage that states them; the best 12 give the seed entities
    perform set_config('hnsw.ef_search', greatest(200, search_breadth(100, 'fact_vector'))::text, true);
    with fact_near as materialized (
        select fact_id, 1 - (embedding <=> p_question) as cos from fact_vector order by embedding <=> p_question limit 100
    ), passage as materialized (
        select * from unnest(v_passage, v_near) as p (chunk_id, near)
    ), stated as materialized (
        select n.fact_id, n.cos, f.chunk_id, p.near
        from fact_near n join fact f on f.id = n.fact_id left join passage p on p.chunk_id = f.chunk_id
    ), elsewhere as materialized (
        select v.chunk_id, 1 - (v.embedding <=> p_question) as near
        from (select distinct chunk_id from stated where near is null) m join chunk_vector v using (chunk_id)
    ), best as materialized (
        select s.fact_id, s.cos + p_support * coalesce(s.near, e.near, 0) as score
        from stated s left join elsewhere e using (chunk_id) order by 2 desc, 1 limit 12
    ), weighted as (
        select fact_id, exp((score - max(score) over ()) / p_tau) as w from best
    ), part as (
        select w.fact_id, w.w, e.entity_id, count(*) over (partition by w.fact_id) as parts
        from weighted w cross join lateral (select distinct entity_id from fact_entity where fact_id = w.fact_id) e
    ), stating as materialized (
        select p.entity_id, sum(p.w / p.parts / greatest(e.mentions, 1)) as w
        from part p join entity e on e.id = p.entity_id group by p.entity_id
    ), named as materialized (
        select distinct e.id as entity_id, 1.0 / greatest(e.mentions, 1) as w
        from unnest(p_name) as k (key) join entity_alias a using (key) join entity e on e.id = a.entity_id
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

    -- 3. the subgraph, its nodes numbered: 30 passages with their entities, 5 passages and 10 neighbours of every seed, all edges inside
    with seed as materialized (
        select * from unnest(v_seed, v_seed_weight) as s (id, w)
    ), first_passage as materialized (
        select * from unnest(v_passage[:30]) as p (id)
    ), passage as materialized (
        select id, row_number() over (order by id) as i from (
            select id from first_passage
            union
            select c.chunk_id from seed cross join lateral (
                select chunk_id
                from (select distinct chunk_id from mention
                      where entity_id = seed.id and chunk_id is not null order by chunk_id limit 50) m
                join chunk_vector v using (chunk_id) order by v.embedding <=> p_question, chunk_id limit 5) c
        ) u
    ), node as materialized (
        select id, row_number() over (order by id) as i from (
            select id from seed
            union
            select m.entity_id from first_passage p join mention m on m.chunk_id = p.id
            union
            select a.other_id from seed cross join lateral (
                select other_id from adjacency where entity_id = seed.id order by weight desc, relation_id limit 10) a
        ) u
    ), size as materialized (
        select count(*) as n from node
    ), linked as materialized (
        select distinct node.i as a, p.i + size.n as b
        from passage p cross join lateral (select entity_id from mention where chunk_id = p.id offset 0) m
        join node on node.id = m.entity_id cross join size
    ), edge as materialized (
        select a, b, w / sum(w) over (partition by a order by b rows between unbounded preceding and unbounded following) as w from (
            select node.i as a, other.i as b, hop.weight::double precision as w
            from node cross join lateral (
                select other_id, weight from adjacency where entity_id = node.id order by weight desc, relation_id limit 32) hop
            join node other on other.id = hop.other_id
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
comment on function rank_chunks(halfvec, text[], integer[], text[], double precision, double precision, integer, double precision,
    double precision, double precision, double precision, double precision, double precision, double precision, double precision) is
    'Passages for a question by personalised PageRank over the graph around it and by their own nearness, best first; walked null: not
reached, near null: no candidate by itself';

-- linked_chunks: the chunks behind entities and relations (best first), at most 50 an item, and which channels lead there; item is the
-- best of those that do, items their number
create or replace function linked_chunks(p_entity bigint[], p_relation bigint[])
returns table (chunk_id bigint, item bigint, items numeric, why text)
language plpgsql stable rows 200
set search_path from current
set plan_cache_mode = force_generic_plan
set jit = off
as $f$
#variable_conflict use_column
begin
    return query
    select chunk_id, min(item), sum(items), string_agg(channel, '+' order by channel)
    from (
        select c.chunk_id, 'entity' as channel, min(e.n) as item, count(*) as items
        from unnest(p_entity) with ordinality as e (id, n) cross join lateral (
            select distinct chunk_id from mention  -- two names that became one entity are one link
            where entity_id = e.id and chunk_id is not null order by chunk_id limit 50) c
        group by c.chunk_id
        union all
        select c.chunk_id, 'relation', min(r.n), count(*)
        from unnest(p_relation) with ordinality as r (id, n) cross join lateral (
            select distinct chunk_id
            from (select chunk_id from fact where relation_id = r.id and chunk_id is not null order by chunk_id limit 50) f) c
        group by c.chunk_id
    ) l
    group by chunk_id;
end $f$;
comment on function linked_chunks(bigint[], bigint[]) is 'Chunks through the source links of entities and relations, with the channels that lead there';

-- find_chunks: the text layer. Candidates come through the source links of the entities and relations found (at most 50 an item), in
-- mix also by the question's vector and by words. vector: the lists in turn, each nearest to the question first (LightRAG's order);
-- weight: the linked ones most often linked first; pagerank: rank_chunks, the rest nearest first.
-- Other than LightRAG: at most 50 links of an item, the oldest passages first (there: all of the 200 kept); vector: whole lists by
-- nearness (there: the 2.5 * items nearest), words take a turn after the vector unless p_lexical is 0; weight: by how many items of both
-- layers link, then by the best of them, in mix in turn with vector and words (there: quotas of 5 to 1, entities first).
create or replace function find_chunks(
    p_question halfvec, p_word text[], p_part integer[], p_name text[], p_entity bigint[], p_relation bigint[], p_mode text,
    p_ranking text, p_lexical double precision, p_nearness double precision, p_limit integer)
returns table (n bigint, chunk_id bigint, score real, why text)
language plpgsql stable rows 20
set search_path from current
set hnsw.ef_search = 100
set plan_cache_mode = force_generic_plan
set jit = off
as $f$
#variable_conflict use_column
begin
    if p_mode = 'naive' or p_ranking <> 'pagerank' then  -- rank_chunks has its own
        perform set_config('hnsw.ef_search', least(1000, greatest(2 * p_limit, search_breadth(100, 'chunk_vector')))::text, true);
    end if;
    if p_mode = 'naive' then
        return query
        select row_number() over (order by cos desc, chunk_id), chunk_id, cos::real, 'vector'
        from (select chunk_id, 1 - (embedding <=> p_question) as cos from chunk_vector
              where p_question is not null order by embedding <=> p_question limit 200) s
        order by 1 limit p_limit;
    elsif p_ranking = 'pagerank' then
        return query
        with graph as materialized (
            select * from linked_chunks(p_entity, p_relation)
        ), walked as materialized (
            select w.chunk_id, row_number() over () as place, w.score
            from rank_chunks(p_question, p_word, p_part, p_name, p_lexical, p_nearness) w
            where p_mode = 'mix' or w.chunk_id in (select chunk_id from graph)
            limit p_limit
        ), rest as (  -- where these are not enough
            select g.*, 1 - (v.embedding <=> p_question) as cos
            from (select * from graph where (select count(*) from walked) < p_limit) g left join chunk_vector v using (chunk_id)
            where not exists (select from walked w where w.chunk_id = g.chunk_id)
        )
        select w.place, w.chunk_id, w.score::real,
               case g.why when 'relation' then 'pagerank+relation' else concat_ws('+', g.why, 'pagerank') end
        from walked w left join graph g using (chunk_id)
        union all
        select (select count(*) from walked) + row_number() over (order by cos desc nulls last, items desc, item, chunk_id), chunk_id, cos::real, why
        from rest
        order by 1 limit p_limit;
    else
        return query
        with graph as materialized (
            select l.*, l.why = 'relation' as related, 1 - (v.embedding <=> p_question) as cos
            from linked_chunks(p_entity, p_relation) l left join chunk_vector v using (chunk_id)
        ), placed as (
            select chunk_id, row_number() over (order by cos desc, chunk_id) * 4 as place, 'vector' as channel, cos as score
            from (select chunk_id, 1 - (embedding <=> p_question) as cos from chunk_vector
                  where p_mode = 'mix' and p_question is not null order by embedding <=> p_question limit 200) d
            union all
            select chunk_id, row_number() over () * 4 + 1, 'words', null
            from search_words(p_word, 200, 600, p_part) where p_mode = 'mix' and p_lexical > 0
            union all
            select chunk_id, row_number() over (partition by related order by cos desc nulls last, items desc, item, chunk_id) * 4
                   + case when related then 3 else 2 end, case when related then 'relation' else 'entity' end, cos
            from graph where p_ranking = 'vector'
            union all
            select chunk_id, row_number() over (order by items desc, item, cos desc nulls last, chunk_id) * 4 - 1, why, items::double precision
            from graph where p_ranking = 'weight'
        )
        select row_number() over (order by b.place, chunk_id), chunk_id,
               (array_agg(score order by p.place) filter (where score is not null))[1]::real, string_agg(distinct channel, '+')
        from (select chunk_id, min(place) as place from placed group by chunk_id order by 2, 1 limit p_limit) b
        join placed p using (chunk_id) group by chunk_id, b.place order by 1;
    end if;
end $f$;
comment on function find_chunks(halfvec, text[], integer[], text[], bigint[], bigint[], text, text, double precision, double precision, integer) is
    'Chunks for a question behind the entities and relations found for it, best first';

-- retrieve: the whole search in one call; every parameter has a default, so that it can be tried from psql. With a filter it is another
-- search (retrieve_within): what is derived from all documents may not be read then.
-- Other than LightRAG: the budgets of both graph layers shrink together to the total (there: passages get what is left); without a vector
-- of the question passages are ranked by weight; filters; no reranking.
create or replace function retrieve(
    p_question halfvec default null, p_low halfvec default null, p_high halfvec default null,
    p_words text[] default '{}', p_keys text[] default '{}', p_similar text[] default '{}',
    p_mode text default 'mix', p_top_k integer default 40, p_chunk_top_k integer default 20, p_ranking text default 'pagerank',
    p_threshold real default .2, p_degree_cap integer default 32, p_hops integer default 1, p_lexical double precision default .2,
    p_entity_tokens integer default 6000, p_relation_tokens integer default 8000, p_total_tokens integer default 30000,
    p_parts integer[] default '{}', p_nearness double precision default null, p_filter jsonb default null)
returns table (layer text, rank bigint, id bigint, name text, type text, target text, keywords text[], body text, weight real, tokens integer,
               score real, why text, document_id bigint, uri text, title text, ordinal integer, headings text[], page integer,
               start_char integer, end_char integer)
language plpgsql stable
set search_path from current
set pg_trgm.similarity_threshold = .5
set plan_cache_mode = force_generic_plan
set jit = off
as $f$
#variable_conflict use_column
declare
    v_entity bigint[] := '{}';
    v_relation bigint[] := '{}';
    v_score real[];
    v_why text[];
    v_relation_score real[];
    v_relation_why text[];
    v_tokens bigint := 0;
    -- the budgets of both layers shrink together to what the total allows
    v_share constant double precision := least(1, p_total_tokens / greatest(1, p_entity_tokens::double precision + p_relation_tokens));
begin
    if p_mode is null or p_mode not in ('local', 'global', 'hybrid', 'mix', 'naive') then
        raise exception 'unknown mode %', coalesce(quote_literal(p_mode), 'null')
            using errcode = 'PGR02', hint = 'Use local, global, hybrid, mix or naive.';
    end if;
    if p_ranking is null or p_ranking not in ('vector', 'weight', 'pagerank') then
        raise exception 'unknown chunk ranking %', coalesce(quote_literal(p_ranking), 'null')
            using errcode = 'PGR02', hint = 'Use vector, weight or pagerank.';
    end if;
    if p_filter <> '{}' then
        return query
        select * from retrieve_within(p_filter, p_question, p_low, p_high, p_words, p_keys, p_similar, p_mode, p_top_k, p_chunk_top_k, p_ranking,
                                      p_threshold, p_degree_cap, p_hops, p_lexical, floor(v_share * p_entity_tokens)::integer,
                                      floor(v_share * p_relation_tokens)::integer, p_total_tokens, p_parts, p_nearness);
        return;
    end if;
    if p_mode <> 'naive' then
        select coalesce(array_agg(g.id order by g.n) filter (where layer = 'entity'), '{}'),
               array_agg(g.score order by g.n) filter (where layer = 'entity'),
               array_agg(g.why order by g.n) filter (where layer = 'entity'),
               coalesce(array_agg(g.id order by g.n) filter (where layer = 'relation'), '{}'),
               array_agg(g.score order by g.n) filter (where layer = 'relation'),
               array_agg(g.why order by g.n) filter (where layer = 'relation'),
               coalesce(sum(g.tokens), 0)
        into v_entity, v_score, v_why, v_relation, v_relation_score, v_relation_why, v_tokens
        from find_graph(p_low, p_high, p_keys, p_similar, p_mode, p_top_k, p_threshold, p_degree_cap, p_hops,
                        floor(v_share * p_entity_tokens)::integer, floor(v_share * p_relation_tokens)::integer) g;
    end if;
    return query
    select 'entity', f.n, e.id, e.name, e.type, null, null::text[], e.description, null::real, e.tokens, f.score, f.why,
           null::bigint, null, null, null::integer, null::text[], null::integer, null::integer, null::integer
    from unnest(v_entity, v_score, v_why) with ordinality as f (id, score, why, n) join entity e on e.id = f.id
    order by f.n;
    return query
    select 'relation', f.n, r.id, least(s.name collate "C", t.name collate "C"), null, greatest(s.name collate "C", t.name collate "C"), r.keywords, r.description, r.weight, r.tokens, f.score, f.why,
           null::bigint, null, null, null::integer, null::text[], null::integer, null::integer, null::integer
    from unnest(v_relation, v_relation_score, v_relation_why) with ordinality as f (id, score, why, n)
    join relation r on r.id = f.id join entity s on s.id = r.source join entity t on t.id = r.target
    order by f.n;
    return query
    select 'chunk', t.n, t.id, null, null, null, t.keywords, t.body, null::real, t.tokens, t.score, t.why,
           t.document_id, t.uri, t.title, t.ordinal, t.headings, t.page, t.start_char, t.end_char
    from (
        select f.n, f.score, f.why, c.*, d.uri, d.title, sum(c.tokens) over (order by f.n) as total
        from find_chunks(p_question, p_words, p_parts, p_similar, v_entity, v_relation, p_mode,
                         case when p_question is null and p_ranking <> 'weight' then 'weight' else p_ranking end,
                         p_lexical, p_nearness, p_chunk_top_k) f
        join chunk c on c.id = f.chunk_id join document d on d.id = c.document_id
    ) t
    where t.total <= p_total_tokens - v_tokens
    order by t.n;
end $f$;
comment on function retrieve(halfvec, halfvec, halfvec, text[], text[], text[], text, integer, integer, text, real, integer, integer,
    double precision, integer, integer, integer, integer[], double precision, jsonb) is
    'Search: entities, relations and chunks for a question, ranked, with the reason of each row and its tokens, within token budgets;
p_filter, an object of the conditions that filter_parts knows, bounds it to some documents';
