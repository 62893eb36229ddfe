-- Filters: which documents a search may see. A filter is one JSON object whose conditions all hold:
--   metadata {…} contained in the document's · uri glob or globs, any of them (* any characters, ? one) · documents
--   uris, any of them ·
--   labels all of them · any_label any of them · published_from, published_until moments, both included
-- No list is no condition; an empty list of alternatives is met by nothing.

create type conditions as (
    metadata jsonb, uri text[], documents text[], labels text[], any_label text[], published_from timestamptz,
    published_until timestamptz);
comment on type conditions is
    'A filter taken apart: metadata contained, uri (patterns of like, any of them), documents (uris, any of them), '
    'labels (all), any_label, dates; null is no condition';

-- filter_parts: a filter checked and taken apart; uri as patterns of like. Moments without a zone are of UTC.
create or replace function filter_parts(p_filter jsonb) returns conditions
language plpgsql stable
set search_path from current
set timezone = 'UTC'
as $f$
declare
    v_key text;
    v_value jsonb;
    v_texts text[];
    v_parts conditions;
begin
    if jsonb_typeof(p_filter) <> 'object' then
        raise exception 'the filter is no JSON object' using errcode = 'PGR02',
            hint = 'Write {"labels": ["handbook"]}.';
    end if;
    for v_key, v_value in select e.key, e.value from jsonb_each(p_filter) as e where e.value <> 'null' loop
        if v_key in ('uri', 'documents', 'labels', 'any_label') then
            v_value := case jsonb_typeof(v_value) when 'string' then jsonb_build_array(v_value) else v_value end;
            if jsonb_typeof(v_value) <> 'array' or v_value @? 'strict $[*] ? (@.type() <> "string")' then
                raise exception 'filter %: neither a text nor a list of texts', v_key using errcode = 'PGR02';
            end if;
            v_texts := array(select jsonb_array_elements_text(v_value));
            case v_key
                when 'uri' then
                    v_parts.uri := array(
                        select replace(replace(escaped, '*', '%'), '?', '_')
                        from unnest(v_texts) as glob
                        cross join regexp_replace(glob, '\*+', '*', 'g') as starred
                        cross join regexp_replace(starred, '([\\%_])', '\\\1', 'g') as escaped);
                when 'documents' then v_parts.documents := v_texts;
                when 'labels' then v_parts.labels := v_texts;
                when 'any_label' then v_parts.any_label := v_texts;
            end case;
        elsif v_key = 'metadata' then
            if jsonb_typeof(v_value) <> 'object' then
                raise exception 'filter metadata: no JSON object'
                    using errcode = 'PGR02', hint = 'Write {"metadata": {"team": "search"}}.';
            end if;
            v_parts.metadata := v_value;
        elsif v_key in ('published_from', 'published_until') then
            begin
                if v_key = 'published_from' then
                    v_parts.published_from := (v_value #>> '{}')::timestamptz;
                else
                    v_parts.published_until := (v_value #>> '{}')::timestamptz;
                end if;
            exception when data_exception then
                raise exception 'filter %: % is no moment', v_key, left(v_value::text, 100)
                    using errcode = 'PGR02', hint = 'Write 2024-05-31 or 2024-05-31T12:00:00Z.';
            end;
        else
            raise exception 'unknown filter %', quote_literal(left(v_key, 100))
                using errcode = 'PGR02',
                      hint = 'Use metadata, uri, documents, labels, any_label, published_from or published_until.';
        end if;
    end loop;
    return v_parts;
end $f$;
comment on function filter_parts(jsonb) is 'The conditions of a filter, checked';

-- is_allowed: inlined: where a plan knows the conditions, those that are null cost nothing and the others use their
-- index (hence the pattern that stands alone).
create or replace function is_allowed(d document, f conditions) returns boolean
language sql immutable
as $f$
    select (f.metadata is null or d.metadata @> f.metadata)
        and (f.uri is null or d.uri like any (f.uri))
        and (f.uri is null or cardinality(f.uri) <> 1 or d.uri like f.uri[1])
        and (f.documents is null or d.uri = any (f.documents))
        and (f.labels is null or d.labels @> f.labels)
        and (f.any_label is null or d.labels && f.any_label)
        and (f.published_from is null or d.published_at >= f.published_from)
        and (f.published_until is null or d.published_at <= f.published_until)
$f$;
comment on function is_allowed(document, conditions) is 'Whether a document meets the conditions of a filter';

create type bounds as (every integer, measured integer, nearest integer, scanned integer);
comment on type bounds is 'How much a filtered search looks at, see scope_bounds';

-- scope_bounds: every: so many allowed passages are all looked at · nearest: of more, so many nearest, if more are not
-- asked for · measured: passages are measured one by one up to the root of so many times all, where that costs what a
-- walk over the index does · scanned: vectors that a walk looks through at most
create or replace function scope_bounds() returns bounds
language sql immutable
as $f$
    select 500, 500, 100, 20000
$f$;
comment on function scope_bounds() is 'How much a filtered search looks at';

-- scope_chunks: the passages that a filtered search looks at. All that are allowed, where these are few. Else those of
-- them that may matter: the nearest to the question and, with p_graph, those with its rarest words, those of the facts
-- nearest to its vectors, and those that the entities named or found in these facts come from: a few hundred, so that
-- the rest of a search costs the same however many are allowed.
create or replace function scope_chunks(
    p_filter jsonb, p_question halfvec, p_graph boolean default false, p_low halfvec default null,
    p_high halfvec default null, p_word text[] default '{}', p_keys text[] default '{}', p_most integer default 0)
returns bigint[]
language plpgsql stable
set search_path from current
set plan_cache_mode = force_custom_plan
set jit = off
as $f$
#variable_conflict use_column
declare
    f constant conditions := filter_parts(p_filter);
    v_bounds constant bounds := scope_bounds();
    v_settings constant text[] := '{hnsw.ef_search,hnsw.iterative_scan,hnsw.max_scan_tuples,hnsw.scan_mem_multiplier}';
    v_most constant integer := least(1000, greatest(v_bounds.nearest, p_most));
    v_measured integer;
    v_chunk bigint[];
    v_scope bigint[];
    v_fact bigint[] := '{}';
    v_rare tsquery;
    v_vector halfvec;
    v_before text[];
begin
    select greatest(v_bounds.every, sqrt(v_bounds.measured * max(chunks)))::integer into v_measured from lexeme
    where word = '';
    v_measured := coalesce(v_measured, v_bounds.every);
    select array_agg(id) into v_chunk from (
        select c.id from document d join chunk c on c.document_id = d.id where is_allowed(d, f) limit v_measured + 1) c;
    if coalesce(cardinality(v_chunk), 0) <= v_bounds.every then
        return coalesce(array(select unnest(v_chunk) order by 1), '{}');
    end if;

    v_before := change_settings(v_settings, array['100', 'relaxed_order', v_bounds.scanned::text, '4']);
    if cardinality(v_chunk) > v_measured then
        select array_agg(chunk_id) into v_scope from (
            select chunk_id from chunk_vector v
            where p_question is not null
              and (select is_allowed(d, f) from chunk c join document d on d.id = c.document_id where c.id = v.chunk_id)
            order by embedding <=> p_question limit v_most) n;
    end if;
    if p_question is not null
        and coalesce(cardinality(v_scope), 0) < v_most then  -- few, or few around the question: all are measured
        with near as materialized (
            select chunk_id, embedding <=> p_question as distance from chunk_vector
            where cardinality(v_chunk) <= v_measured and chunk_id = any (v_chunk)
            union all
            select chunk_id, embedding <=> p_question
            from document d join chunk c on c.document_id = d.id join chunk_vector v on v.chunk_id = c.id
            where cardinality(v_chunk) > v_measured and is_allowed(d, f)
        )
        select array_agg(chunk_id) into v_scope from (select chunk_id from near order by distance limit v_most) n;
    end if;

    if p_graph then
        select string_agg(quoted_word(word), ' | ')::tsquery into v_rare
        from (select *, sum(chunks) over (order by n) as total from search_terms(p_word)) t
        where total <= 2000 or n = 1;
        v_scope := v_scope || array(
            select chunk_id from chunk_search s
            where words @@ v_rare
              and (select is_allowed(d, f) from chunk c join document d on d.id = c.document_id where c.id = s.chunk_id)
            limit 200);

        for v_vector in select distinct v from unnest(array[p_question, p_low, p_high]) as v where v is not null loop
            if cardinality(v_chunk) <= least(v_measured, 4 * v_bounds.every) then
                v_fact := v_fact || array(
                    with near as materialized (
                        select t.id, v.embedding <=> v_vector as distance
                        from fact t join fact_vector v on v.fact_id = t.id where t.chunk_id = any (v_chunk)
                    )
                    select id from near order by distance limit 100);
            else
                v_fact := v_fact || array(
                    select fact_id from fact_vector v
                    where (
                        select is_allowed(d, f)
                        from fact t join chunk c on c.id = t.chunk_id join document d on d.id = c.document_id
                        where t.id = v.fact_id)
                    order by embedding <=> v_vector limit 100);
            end if;
        end loop;

        -- of an entity 1,000 source links are read at most, whoever may see them: a hub costs what any entity costs
        with entity as (
            select a.entity_id, k.n - 1000 as n from unnest(p_keys) with ordinality as k (key, n)
            join entity_alias a using (key)
            union all
            select e.entity_id, t.n from unnest(v_fact) with ordinality as t (id, n)
            join fact_entity e on e.fact_id = t.id
        ), source as (
            select m.chunk_id
            from (select entity_id from entity group by entity_id order by min(n), entity_id limit 40) e
            cross join lateral (
                select l.chunk_id
                from (select chunk_id from mention
                      where entity_id = e.entity_id and chunk_id is not null order by chunk_id limit 1000) l
                where (select is_allowed(d, f) from chunk c join document d on d.id = c.document_id
                       where c.id = l.chunk_id)
                limit 20) m
        )
        select array_agg(id) into v_scope from (
            select unnest(v_scope) as id
            union select chunk_id from fact where id = any (v_fact)
            union select chunk_id from source
        ) found;
    end if;
    perform change_settings(v_settings, v_before);
    return coalesce(array(select unnest(v_scope) order by 1), '{}');
end $f$;
comment on function scope_chunks(jsonb, halfvec, boolean, halfvec, halfvec, text[], text[], integer) is
    'Ids of the passages that a filter allows; where they are many, those of them that may matter for a question: the '
    'nearest and, with p_graph, those of its words, facts and names';

create type scope as (
    chunk bigint[], near double precision[], near_low double precision[], entity bigint[], mentions bigint[],
    m_id bigint[], m_entity bigint[], m_chunk bigint[], f_id bigint[], f_chunk bigint[], f_relation bigint[],
    f_near double precision[], f_low double precision[], f_high double precision[], e_relation bigint[],
    e_source bigint[], e_target bigint[], e_weight double precision[]);
comment on type scope is
    'What a filtered search may see, as parallel arrays: passages with their nearness to the question and its '
    'low-level keywords; entities with the number of these passages that mention them; m_ mentions, f_ facts with '
    'their nearness to each vector, e_ relations with the weight that these facts give them';

-- load_scope: names, types, descriptions, weights and counts of a filtered search are made of what the passages in its
-- scope state, for a profile, vector or text, mixes documents. It is read once.
create or replace function load_scope(
    p_chunk bigint[], p_graph boolean, p_question halfvec, p_low halfvec, p_high halfvec) returns scope
language plpgsql stable
set search_path from current
set plan_cache_mode = force_custom_plan
set jit = off
as $f$
declare
    s scope;
begin
    select array_agg(c.id), array_agg(1 - (v.embedding <=> p_question)), array_agg(1 - (v.embedding <=> p_low))
    into s.chunk, s.near, s.near_low
    from unnest(p_chunk) as c (id) left join chunk_vector v on v.chunk_id = c.id;
    if not p_graph then
        return s;
    end if;
    select array_agg(m.id), array_agg(m.entity_id), array_agg(m.chunk_id) into s.m_id, s.m_entity, s.m_chunk
    from mention m where m.chunk_id = any (p_chunk);
    select array_agg(m.entity_id), array_agg(m.mentions) into s.entity, s.mentions
    from (select u.entity_id, count(distinct u.chunk_id) as mentions
          from unnest(s.m_entity, s.m_chunk) as u (entity_id, chunk_id) group by u.entity_id) m;
    select array_agg(f.id), array_agg(f.chunk_id), array_agg(f.relation_id),
           array_agg(1 - (v.embedding <=> p_question)),
           array_agg(1 - (v.embedding <=> p_low)), array_agg(1 - (v.embedding <=> p_high))
    into s.f_id, s.f_chunk, s.f_relation, s.f_near, s.f_low, s.f_high
    from fact f left join fact_vector v on v.fact_id = f.id where f.chunk_id = any (p_chunk);
    select array_agg(w.relation_id), array_agg(r.source), array_agg(r.target), array_agg(w.weight::real)
    into s.e_relation, s.e_source, s.e_target, s.e_weight
    from weigh_relations(null, p_chunk) w join relation r on r.id = w.relation_id;
    return s;
end $f$;
comment on function load_scope(bigint[], boolean, halfvec, halfvec, halfvec) is
    'The nearness of chunks to a question and, with p_graph, what they state';
