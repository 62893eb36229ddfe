-- Search: question, low-level and high-level vectors in, ranked rows of three layers out, one call. What is read, of
-- everything or of what a filter allows, stands in 64; here are the rules, once.

-- find_graph: entities and relations for a question, best first. Seeds: entities by exact name, by vector and by
-- similar name, in turn; relations by vector. One hop (or more) from the seeds. Local and global lists are merged in
-- turn, so that a cut starves neither. Other than LightRAG: seeds are names, vectors and similar names in turn, p_top_k
-- in all (there: vectors alone); of a seed the heaviest edges are read up to the cap, the nearest hop and each seed's
-- heaviest first (there: all, by the degrees of both ends); further hops on request, along 8 edges and with a quarter
-- of the cap each, 2 at least; the entities walked to follow the others, 4 * p_top_k at most (there: none); relations
-- are told apart by their ends in any order, 1,000 at most.
create or replace function find_graph(p_asked asked, p_scope scope)
returns table (
    layer text, n bigint, id bigint, name text, type text, target text, keywords text[], body text, weight real,
    tokens integer, score real, why text)
language plpgsql stable rows 200
set search_path from current
set jit = off
as $f$
#variable_conflict use_column
declare
    v_seed bigint[];            -- entities in their order, with their nearness and channels
    v_cos double precision[];
    v_why text[];
    v_from bigint[];            -- where the next hop starts, and from which seed it came
    v_origin bigint[];
    v_relation bigint[] := '{}';  -- what the hops before it met, row by row
    v_other bigint[] := '{}';
    v_depth integer[] := '{}';
    v_j bigint[] := '{}';
    v_n bigint[] := '{}';
    v_cap constant integer := least(p_asked.degree_cap, 1000);
    v_cap_of constant integer[] :=  -- of each hop
        array[v_cap, least(v_cap, greatest(2, v_cap >> 2)), least(v_cap, greatest(2, v_cap >> 4))];
    v_entity bigint[];
    v_score real[];
    v_relation_score real[];
    v_relation_why text[];
begin
    if p_asked.mode <> 'global' then
        select array_agg(entity_id order by n), array_agg(cos order by n), array_agg(why order by n)
        into v_seed, v_cos, v_why
        from (
            select entity_id, row_number() over (order by min(place), entity_id) as n, max(cos) as cos,
                   string_agg(channel, '+' order by side) as why
            from (
                select entity_id, row_number() over (order by n) * 3 as place, null::double precision as cos,
                       'name' as channel, 0 as side
                from named_entities(p_asked.keys, p_scope)
                union all
                select entity_id, n * 3 + 1, cos, why, 1 from near_entities(p_asked, p_scope)
                union all
                select entity_id, row_number() over (order by n) * 3 + 2, null, 'similar name', 2
                from similar_entities(p_asked.names, p_scope)
            ) channels
            group by entity_id order by 2 limit p_asked.top_k
        ) seeds;
        v_from := v_seed;
        v_origin := array(select generate_series(1, cardinality(v_seed)));
        for v_hop in 1..p_asked.hops - 1 loop
            select v_relation || array_agg(relation_id), v_other || array_agg(other_id), v_depth || array_agg(v_hop),
                   v_j || array_agg(j), v_n || array_agg(v_origin[n])
            into v_relation, v_other, v_depth, v_j, v_n
            from edges_of(v_from, v_cap_of[v_hop], p_scope);
            select array_agg(other_id), array_agg(n) into v_from, v_origin
            from (select distinct other_id, n from unnest(v_other, v_depth, v_j, v_n) as w (other_id, depth, j, n)
                  where depth = v_hop and j <= 8) onward;
        end loop;
    end if;

    with seed as (
        select * from unnest(v_seed, v_cos, v_why) with ordinality as s (id, cos, why, n)
    ), walk as materialized (
        select relation_id, other_id, p_asked.hops as depth, j, v_origin[n] as n
        from edges_of(v_from, v_cap_of[p_asked.hops], p_scope)
        union all
        select * from unnest(v_relation, v_other, v_depth, v_j, v_n)
    ), global_relation as materialized (
        select * from near_relations(p_asked, p_scope) where p_asked.mode <> 'local'
    ), ends as (
        select id, row_number() over (order by min(place)) as n
        from (select source as id, n * 2 as place from global_relation
              union all select target, n * 2 + 1 from global_relation) e
        group by id
    ), neighbour as (
        select other_id as id, row_number() over (order by min(depth), min(j), min(n), other_id) as n from walk
        group by other_id
    ), entity_place as (
        select id, n * 2 as place, cos, why from seed
        union all
        select id, n * 2 + 1, null, 'relation' from ends
        union all
        select id, 1000000 + n, null, 'hop' from neighbour where n <= 4 * p_asked.top_k
    ), relation_place as (
        select relation_id as id, row_number() over (order by min(depth), min(j), min(n), relation_id) * 2 as place,
               null::double precision as cos, 'hop' as why
        from walk group by relation_id
        union all
        select relation_id, n * 2 + 1, cos, why from global_relation
    ), entities as (
        select id, min(place) as place, max(cos)::real as score, string_agg(distinct why, '+') as why
        from entity_place group by id order by place, id
    ), relations as (
        select id, min(place) as place, max(cos)::real as score, string_agg(distinct why, '+') as why
        from relation_place group by id order by place, id limit 1000
    )
    select e.ids, e.scores, e.whys, r.ids, r.scores, r.whys
    into v_entity, v_score, v_why, v_relation, v_relation_score, v_relation_why
    from (select array_agg(id) as ids, array_agg(score) as scores, array_agg(why) as whys from entities) e,
         (select array_agg(id) as ids, array_agg(score) as scores, array_agg(why) as whys from relations) r;

    return query
    select 'entity', n, id, name, type, null, null::text[], description, null::real, tokens, v_score[n], v_why[n]
    from entity_rows(v_entity, p_asked.entity_tokens, p_scope);
    return query
    select 'relation', n, id, name, null, target, keywords, description, weight, tokens, v_relation_score[n],
           v_relation_why[n]
    from relation_rows(v_relation, p_asked.relation_tokens, p_scope);
end $f$;
comment on function find_graph(asked, scope) is
    'Entities and relations for the vectors and names of a question, best first, within token budgets. Other than '
    'LightRAG, at most degree_cap edges of an entity are read, by weight, and taken in turn over the seeds; neighbours '
    'follow the seeds';

create type recipe as (
    iterations integer, passages double precision, names double precision, support double precision,
    tau double precision, damping double precision, flat double precision, sharp double precision,
    most double precision);
comment on type recipe is 'The figures of rank_chunks, see shipped_recipe';

-- shipped_recipe: passages: restart mass of passages; names: of the rest that of names, rare ones more; support: share
-- of its passage in a fact's score; tau: softmax temperature; damping: probability to walk on. The share of nearness in
-- the order is most where the contrast is flat or less, 0 from sharp on and in a corpus too small to have one.
create or replace function shipped_recipe() returns recipe
language sql immutable
as $f$
    select 4, .4::float8, .2::float8, .3::float8, .015::float8, .6::float8, .9::float8, 1.1::float8, .8::float8
$f$;
comment on function shipped_recipe() is 'The figures of rank_chunks as shipped';

-- walk_chunks: the last steps of rank_chunks: the walk over a subgraph, and both orders on one scale. p_restart is by
-- node (entities first, then the passages p_node); edges carry the probability to be taken; p_nearness is of the
-- candidates p_passage.
create or replace function walk_chunks(
    p_passage bigint[], p_nearness double precision[], p_share double precision, p_node bigint[], p_entities integer,
    p_restart double precision[], p_from integer[], p_to integer[], p_weight double precision[],
    p_damping double precision, p_iterations integer)
returns table (chunk_id bigint, score double precision, walked double precision, near double precision)
language plpgsql stable rows 200
set search_path from current
set jit = off
set enable_mergejoin = off
as $f$
#variable_conflict use_column
declare
    v_x double precision[] := p_restart;
    v_y double precision[];
    v_edges integer := coalesce(cardinality(p_from), 0);
begin
    for i in 1..cardinality(p_restart) loop
        p_restart[i] := (1 - p_damping) * p_restart[i];
    end loop;
    for step in 1..p_iterations loop
        v_y := p_restart;
        if step = 1 then  -- few nodes are started from
            for i in 1..v_edges loop
                continue when v_x[p_from[i]] = 0;
                v_y[p_to[i]] := v_y[p_to[i]] + p_weight[i] * v_x[p_from[i]];
            end loop;
        else
            for i in 1..v_edges loop
                v_y[p_to[i]] := v_y[p_to[i]] + p_weight[i] * v_x[p_from[i]];
            end loop;
        end if;
        v_x := v_y;
    end loop;

    -- from the best to the 100th: logarithms of what the walk brought, and nearness
    return query
    with reached as (
        select id, ln(x) as x from unnest(p_node, v_x[p_entities + 1:]) as u (id, x) where x > 0
    ), walk as (
        select id, coalesce((x - worst) / nullif(best - worst, 0), 1) as share
        from reached, (select max(x) as best, min(x) as worst
                       from (select x from reached order by x desc limit 100) hundred) r
    ), candidate as (
        select * from unnest(p_passage, p_nearness) as u (id, near)
    ), close as (
        select id, coalesce((near - worst) / nullif(best - worst, 0), 1) as share, near
        from candidate,
             (select max(near) as best, min(near) as worst
              from (select near from candidate order by near desc limit 100) hundred) r
    )
    select id, (1 - p_share) * greatest(w.share, 0) + p_share * greatest(c.share, 0) as score,
           nullif(v_x[p_entities + array_position(p_node, id)], 0), c.near
    from walk w full join close c using (id)
    order by score desc, near desc nulls last, id;
end $f$;
comment on function walk_chunks(bigint[], double precision[], double precision, bigint[], integer, double precision[],
    integer[], integer[], double precision[], double precision, integer) is
    'The walk of rank_chunks over a subgraph of entities and passages, and the order that comes of it';

-- rank_chunks: passages by personalised PageRank over a bounded neighbourhood of the question, after HippoRAG 2
-- (Gutierrez et al. 2025). Facts near the question say which entities matter, names in it have a share, and passages
-- near it by vector and words have theirs; the walk runs over entity-entity edges (weight) and entity-passage edges
-- (1), row-normalised, for a fixed number of steps. Where neither passages nor facts stand out for the question (see
-- contrast), a bridge from them leads anywhere: there the passages' own nearness decides.
--   p_name keys of the names · p_lexical share of BM25 in a passage's nearness, half of it where nearness only starts
--   the walk ·
--   p_nearness share of nearness in the order, 0 to 1; null: by the contrast
create or replace function rank_chunks(
    p_question halfvec, p_word text[], p_part integer[] default '{}', p_name text[] default '{}',
    p_lexical double precision default .2, p_nearness double precision default null, p_scope scope default null,
    p_recipe recipe default shipped_recipe())
returns table (chunk_id bigint, score double precision, walked double precision, near double precision)
language plpgsql stable rows 200
set search_path from current
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
    v_node bigint[];          -- passages of the subgraph; as nodes they follow its entities
    v_entity bigint[];
    v_link_passage bigint[];  -- what the passages of the subgraph mention
    v_link_entity bigint[];
    v_restart double precision[];
    v_from integer[];
    v_to integer[];
    v_weight double precision[];
begin
    -- 1. passages: the 100 nearest by vector and the 100 best by words, one score
    with dense as materialized (
        select * from near_passages(p_question, 100, 100, p_scope)
    ), lexical as materialized (
        select chunk_id, p_lexical * (score / max(score) over () + part) as words
        from search_words(p_word, 100, 300, p_part, p_scope.chunk) where p_lexical > 0
    ), passage as (
        select d.chunk_id, d.cos, coalesce(l.words, 0) as words from dense d left join lexical l using (chunk_id)
        union all
        select chunk_id, v.cos, l.words
        from lexical l
        join nearness_of(
            p_question, array(select chunk_id from lexical where chunk_id not in (select chunk_id from dense)), p_scope
        ) v using (chunk_id)
    )
    select array_agg(chunk_id order by near desc, chunk_id), array_agg(near order by near desc, chunk_id),
           array_agg(cos + words order by near desc, chunk_id),
           array[contrast((select array_agg(cos order by cos desc) from dense))]
    into v_passage, v_near, v_nearness, v_contrast
    from (select *, cos + words / 2 as near from passage) p;
    if v_passage is null then
        return;
    end if;

    -- 2. facts near the question, helped by the passage that states them; the best 12 give the seed entities
    with fact_near as materialized (
        select * from near_facts(p_question, p_scope)
    ), passage as materialized (
        select * from unnest(v_passage, v_near) as p (chunk_id, near)
    ), elsewhere as materialized (
        select chunk_id, cos as near
        from nearness_of(p_question, array(select chunk_id from fact_near except select unnest(v_passage)), p_scope)
    ), best as materialized (
        select f.fact_id, f.cos + p_recipe.support * coalesce(p.near, e.near, 0) as score
        from fact_near f left join passage p using (chunk_id) left join elsewhere e using (chunk_id)
        order by score desc, fact_id limit 12
    ), weighted as (
        select fact_id, exp((score - max(score) over ()) / p_recipe.tau) as w from best
    ), part as materialized (
        select w.w, e.entity_id, count(*) over (partition by w.fact_id) as parts
        from weighted w cross join lateral (select distinct entity_id from fact_entity where fact_id = w.fact_id) e
    ), name as materialized (
        select entity_id from named_entities(p_name, p_scope)
    ), mentioned as materialized (
        select * from mentions_of(array(select entity_id from part union select entity_id from name), p_scope)
    ), stating as materialized (
        select p.entity_id, sum(p.w / p.parts / m.mentions) as w from part p join mentioned m using (entity_id)
        group by p.entity_id
    ), named as materialized (
        select n.entity_id, 1.0 / m.mentions as w from name n join mentioned m using (entity_id)
    ), seed as (
        select entity_id, sum(w) as w
        from (
            select entity_id,
                   w / sum(w) over () * case when exists (select from named) then 1 - p_recipe.names else 1 end as w
            from stating
            union all
            select entity_id,
                   w / sum(w) over () * case when exists (select from stating) then p_recipe.names else 1 end
            from named
        ) both_kinds
        group by entity_id
    )
    select array_agg(entity_id order by w desc, entity_id), array_agg(w order by w desc, entity_id),
           v_contrast || contrast((select array_agg(cos order by cos desc) from fact_near))
    into v_seed, v_seed_weight, v_contrast from seed;
    v_share := coalesce(p_nearness, (
        select case when c <= p_recipe.flat then p_recipe.most
                    when c < p_recipe.sharp then p_recipe.most * (p_recipe.sharp - c) / (p_recipe.sharp - p_recipe.flat)
                    else 0 end
        from greatest(v_contrast[1], v_contrast[2]) as c));

    -- 3. the subgraph, its nodes numbered: 30 passages with their entities, 5 passages and 10 neighbours of every seed,
    -- all edges inside
    with source as materialized (
        select n, chunk_id from passages_of(v_seed, '{}', p_scope)
    ), near_source as (
        select s.chunk_id, row_number() over (partition by s.n order by v.cos desc, s.chunk_id) as i
        from source s
        join nearness_of(p_question, array(select distinct chunk_id from source), p_scope) v using (chunk_id)
    )
    select array_agg(id order by id) into v_node
    from (select unnest(v_passage[:30]) as id union select chunk_id from near_source where i <= 5) passage;
    select chunk, entity into v_link_passage, v_link_entity from entities_of(v_node, p_scope);
    select array_agg(id order by id) into v_entity from (
        select unnest(v_seed) as id
        union
        select l.entity_id from unnest(v_link_passage, v_link_entity) as l (chunk_id, entity_id)
        where l.chunk_id in (select unnest(v_passage[:30]))
        union
        select other_id from edges_of(v_seed, 10, p_scope)
    ) node;
    with node as materialized (
        select * from unnest(v_entity) with ordinality as e (id, i)
    ), passage as materialized (
        select id, i + coalesce(cardinality(v_entity), 0) as i from unnest(v_node) with ordinality as p (id, i)
    ), linked as materialized (
        select node.i as a, p.i as b
        from unnest(v_link_passage, v_link_entity) as l (chunk_id, entity_id)
        join passage p on p.id = l.chunk_id join node on node.id = l.entity_id
    ), edge as materialized (
        select a, b, w / sum(w) over exit as w from (
            select a, b, weight as w from edges_among(v_entity, p_scope)
            union all select a, b, 1 from linked
            union all select b, a, 1 from linked
        ) ways
        where w > 0
        window exit as (partition by a order by b rows between unbounded preceding and unbounded following)
    ), restart as (
        select node.i, (1 - p_recipe.passages) * s.w as w from unnest(v_seed, v_seed_weight) as s (id, w)
        join node using (id)
        union all
        select p.i, p_recipe.passages * q.w / sum(q.w) over ()
        from (select id, exp((near - v_near[1]) / p_recipe.tau) as w
              from unnest(v_passage[:20], v_near[:20]) as q (id, near)) q
        join passage p using (id)
    )
    select (select array_agg(coalesce(r.w, 0) order by g.i)
            from generate_series(1, coalesce(cardinality(v_entity), 0) + cardinality(v_node)) as g (i)
            left join restart r using (i)),
           array_agg(a::integer order by a, b), array_agg(b::integer order by a, b),
           array_agg(p_recipe.damping * w order by a, b)
    into v_restart, v_from, v_to, v_weight from edge;

    -- 4. the walk over it, and the order
    return query
    select * from walk_chunks(
        p_passage => v_passage, p_nearness => v_nearness, p_share => v_share, p_node => v_node,
        p_entities => coalesce(cardinality(v_entity), 0), p_restart => v_restart, p_from => v_from, p_to => v_to,
        p_weight => v_weight,
        p_damping => p_recipe.damping, p_iterations => p_recipe.iterations);
end $f$;
comment on function rank_chunks(halfvec, text[], integer[], text[], double precision, double precision, scope, recipe)
    is
    'Passages for a question by personalised PageRank over the graph around it and by their own nearness, best first; '
    'walked null: not reached, near null: no candidate by itself';

-- find_chunks: the text layer. Candidates come through the source links of the entities and relations found (at most 50
-- an item), in mix also by the question's vector and by words. vector: the lists in turn, each nearest to the question
-- first (LightRAG's order); weight: the linked ones most often linked first; pagerank: rank_chunks, the rest nearest
-- first. Other than LightRAG: at most 50 links of an item, the oldest passages first (there: all of the 200 kept);
-- vector: whole lists by nearness (there: the 2.5 * items nearest), words take a turn after the vector unless p_lexical
-- is 0; weight: by how many items of both layers link, then by the best of them, in mix in turn with vector and words
-- (there: quotas of 5 to 1, entities first).
create or replace function find_chunks(p_asked asked, p_entity bigint[], p_relation bigint[], p_scope scope)
returns table (n bigint, chunk_id bigint, score real, why text)
language plpgsql stable rows 20
set search_path from current
set jit = off
as $f$
#variable_conflict use_column
declare
    v_link bigint[];      -- passages behind entities and relations: their best item, the number of items, channels
    v_item bigint[];
    v_items bigint[];
    v_why text[];
begin
    if p_asked.mode = 'naive' then
        return query
        select row_number() over (order by cos desc, chunk_id), chunk_id, cos::real, 'vector'
        from near_passages(p_asked.question, p_asked.most, 2 * p_asked.most, p_scope);
        return;
    end if;
    select array_agg(chunk_id), array_agg(item), array_agg(items), array_agg(why) into v_link, v_item, v_items, v_why
    from (select chunk_id, min(n) as item, count(*) as items, string_agg(distinct channel, '+') as why
          from passages_of(p_entity, p_relation, p_scope) group by chunk_id) link;
    if p_asked.ranking = 'pagerank' then
        return query
        with graph as materialized (
            select * from unnest(v_link, v_item, v_items, v_why) as l (chunk_id, item, items, why)
        ), walked as materialized (
            select chunk_id, row_number() over () as place, score
            from rank_chunks(p_question => p_asked.question, p_word => p_asked.words, p_part => p_asked.parts,
                             p_name => p_asked.names,
                             p_lexical => p_asked.lexical, p_nearness => p_asked.nearness, p_scope => p_scope)
            where p_asked.mode = 'mix' or chunk_id = any (v_link)
            limit p_asked.most
        ), rest as materialized (  -- where these are not enough
            select * from graph
            where (select count(*) from walked) < p_asked.most and chunk_id not in (select chunk_id from walked)
        )
        select w.place, w.chunk_id, w.score::real,
               case g.why when 'relation' then 'pagerank+relation' else concat_ws('+', g.why, 'pagerank') end
        from walked w left join graph g using (chunk_id)
        union all
        select (select count(*) from walked)
               + row_number() over (order by cos desc nulls last, items desc, item, chunk_id),
               chunk_id, cos::real, why
        from rest left join nearness_of(p_asked.question, array(select chunk_id from rest), p_scope) using (chunk_id)
        order by 1 limit p_asked.most;
    else
        return query
        with graph as materialized (
            select l.*, l.why = 'relation' as related, v.cos
            from unnest(v_link, v_item, v_items, v_why) as l (chunk_id, item, items, why)
            left join nearness_of(p_asked.question, v_link, p_scope) v using (chunk_id)
        ), placed as (
            select chunk_id, row_number() over (order by cos desc, chunk_id) * 4 as place, 'vector' as channel,
                   cos as score
            from near_passages(p_asked.question, 200, 2 * p_asked.most, p_scope) where p_asked.mode = 'mix'
            union all
            select chunk_id, row_number() over () * 4 + 1, 'words', null
            from search_words(p_asked.words, 200, 600, p_asked.parts, p_scope.chunk)
            where p_asked.mode = 'mix' and p_asked.lexical > 0
            union all
            select chunk_id, row_number() over (partition by related
                                                order by cos desc nulls last, items desc, item, chunk_id) * 4
                   + case when related then 3 else 2 end, case when related then 'relation' else 'entity' end, cos
            from graph where p_asked.ranking = 'vector'
            union all
            select chunk_id, row_number() over (order by items desc, item, cos desc nulls last, chunk_id) * 4 - 1, why,
                   items::double precision
            from graph where p_asked.ranking = 'weight'
        ), best as (
            select chunk_id, min(place) as place from placed group by chunk_id order by place, chunk_id
            limit p_asked.most
        )
        select row_number() over (order by b.place, chunk_id), chunk_id,
               (array_agg(score order by p.place) filter (where score is not null))[1]::real,
               string_agg(distinct channel, '+')
        from best b join placed p using (chunk_id) group by chunk_id, b.place order by 1;
    end if;
end $f$;
comment on function find_chunks(asked, bigint[], bigint[], scope) is
    'Chunks for a question behind the entities and relations found for it, best first';

-- retrieve: the whole search in one call; every parameter has a default, so that it can be tried from psql. Other than
-- LightRAG: the budgets of both graph layers shrink together to the total (there: passages get what is left); without a
-- vector of the question passages are ranked by weight; filters; no reranking.
create or replace function retrieve(
    p_question halfvec default null, p_low halfvec default null, p_high halfvec default null,
    p_words text[] default '{}', p_keys text[] default '{}', p_similar text[] default '{}', p_mode text default 'mix',
    p_top_k integer default 40, p_chunk_top_k integer default 20, p_ranking text default 'pagerank',
    p_threshold real default .2, p_degree_cap integer default 32, p_hops integer default 1,
    p_lexical double precision default .2, p_entity_tokens integer default 6000, p_relation_tokens integer default 8000,
    p_total_tokens integer default 30000, p_parts integer[] default '{}', p_nearness double precision default null,
    p_filter jsonb default null)
returns table (
    layer text, rank bigint, id bigint, name text, type text, target text, keywords text[], body text, weight real,
    tokens integer, score real, why text, document_id bigint, uri text, title text, ordinal integer, headings text[],
    page integer, start_char integer, end_char integer)
language plpgsql stable
set search_path from current
set plan_cache_mode = force_generic_plan
set jit = off
as $f$
#variable_conflict use_column
declare
    v_asked asked;
    v_scope scope;
    v_chunk bigint[];
    v_entity bigint[] := '{}';      -- that fit the budget
    v_relation bigint[] := '{}';
    v_tokens bigint := 0;
    -- the budgets of both layers shrink together to what the total allows
    v_share constant double precision :=
        least(1, p_total_tokens / greatest(1, p_entity_tokens::double precision + p_relation_tokens));
begin
    if p_mode is null or p_mode not in ('local', 'global', 'hybrid', 'mix', 'naive') then
        raise exception 'unknown mode %', coalesce(quote_literal(p_mode), 'null')
            using errcode = 'PGR02', hint = 'Use local, global, hybrid, mix or naive.';
    end if;
    if p_ranking is null or p_ranking not in ('vector', 'weight', 'pagerank') then
        raise exception 'unknown chunk ranking %', coalesce(quote_literal(p_ranking), 'null')
            using errcode = 'PGR02', hint = 'Use vector, weight or pagerank.';
    end if;
    v_asked.question := p_question;
    v_asked.low := p_low;
    v_asked.high := p_high;
    v_asked.words := p_words;
    v_asked.parts := p_parts;
    v_asked.keys := p_keys;
    v_asked.names := p_similar;
    v_asked.mode := p_mode;
    v_asked.top_k := p_top_k;
    v_asked.threshold := p_threshold;
    v_asked.degree_cap := p_degree_cap;
    v_asked.hops := p_hops;
    v_asked.ranking := case when p_question is null then 'weight' else p_ranking end;
    v_asked.lexical := p_lexical;
    v_asked.nearness := p_nearness;
    v_asked.most := p_chunk_top_k;
    v_asked.entity_tokens := floor(v_share * p_entity_tokens);
    v_asked.relation_tokens := floor(v_share * p_relation_tokens);
    if p_filter <> '{}' then
        -- until the end of this function, whose header sets it
        perform set_config('plan_cache_mode', 'force_custom_plan', true);
        v_chunk := scope_chunks(
            p_filter => p_filter, p_question => p_question, p_graph => p_mode <> 'naive', p_low => p_low,
            p_high => p_high, p_word => p_words, p_keys => p_keys || p_similar, p_most => p_chunk_top_k);
        if v_chunk = '{}' then
            return;
        end if;
        v_scope := load_scope(v_chunk, p_mode <> 'naive', p_question, p_low, p_high);
    end if;

    if p_mode <> 'naive' then
        for layer, rank, id, name, type, target, keywords, body, weight, tokens, score, why in
            select * from find_graph(v_asked, v_scope)
        loop
            return next;
            v_tokens := v_tokens + tokens;
            if layer = 'entity' then
                v_entity := v_entity || id;
            else
                v_relation := v_relation || id;
            end if;
        end loop;
    end if;
    return query
    select 'chunk', n, id, null, null, null, keywords, body, null::real, tokens, score, why,
           document_id, uri, title, ordinal, headings, page, start_char, end_char
    from (
        select f.n, f.score, f.why, c.*, d.uri, d.title, sum(c.tokens) over (order by f.n) as total
        from find_chunks(v_asked, v_entity, v_relation, v_scope) f
        join chunk c on c.id = f.chunk_id join document d on d.id = c.document_id
    ) passage
    where total <= p_total_tokens - v_tokens
    order by n;
end $f$;
comment on function retrieve(halfvec, halfvec, halfvec, text[], text[], text[], text, integer, integer, text, real,
    integer, integer, double precision, integer, integer, integer, integer[], double precision, jsonb) is
    'Search: entities, relations and chunks for a question, ranked, with the reason of each row and its tokens, '
    'within token budgets; p_filter, an object of the conditions that filter_parts knows, bounds it to some documents';
