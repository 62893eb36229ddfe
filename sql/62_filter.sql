-- Filters: which documents a search may see. A filter is one JSON object whose conditions all hold:
--   metadata {…} contained in the document's · uri glob or globs, any of them (* any characters, ? one) · documents uris, any of them ·
--   labels all of them · any_label any of them · published_from, published_until moments, both included
-- No list is no condition; an empty list of alternatives is met by nothing.

-- filter_parts: a filter checked and taken apart; uri as patterns of like. Moments without a zone are of UTC.
create or replace function filter_parts(
    p_filter jsonb, out metadata jsonb, out uri text[], out documents text[], out labels text[], out any_label text[],
    out published_from timestamptz, out published_until timestamptz)
language plpgsql stable
set search_path from current
set timezone = 'UTC'
as $f$
declare
    v_key text;
    v_value jsonb;
    v_texts text[];
begin
    if jsonb_typeof(p_filter) <> 'object' then
        raise exception 'the filter is no JSON object' using errcode = 'PGR02', hint = 'Write {"labels": ["handbook"]}.';
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
                    uri := array(select replace(replace(regexp_replace(regexp_replace(glob, '\*+', '*', 'g'), '([\\%_])', '\\\1', 'g'),
                                                        '*', '%'), '?', '_')
                                 from unnest(v_texts) as glob);
                when 'documents' then documents := v_texts;
                when 'labels' then labels := v_texts;
                when 'any_label' then any_label := v_texts;
            end case;
        elsif v_key = 'metadata' then
            if jsonb_typeof(v_value) <> 'object' then
                raise exception 'filter metadata: no JSON object' using errcode = 'PGR02', hint = 'Write {"metadata": {"team": "search"}}.';
            end if;
            metadata := v_value;
        elsif v_key in ('published_from', 'published_until') then
            begin
                if v_key = 'published_from' then
                    published_from := (v_value #>> '{}')::timestamptz;
                else
                    published_until := (v_value #>> '{}')::timestamptz;
                end if;
            exception when data_exception then
                raise exception 'filter %: % is no moment', v_key, left(v_value::text, 100)
                    using errcode = 'PGR02', hint = 'Write 2024-05-31 or 2024-05-31T12:00:00Z.';
            end;
        else
            raise exception 'unknown filter %', quote_literal(left(v_key, 100))
                using errcode = 'PGR02', hint = 'Use metadata, uri, documents, labels, any_label, published_from or published_until.';
        end if;
    end loop;
end $f$;
comment on function filter_parts(jsonb) is
    'The conditions of a filter: metadata contained, uri (patterns of like, any of them), documents (uris, any of them), labels (all), any_label, dates';

-- is_allowed: one document by the conditions. Inlined: where a plan knows the conditions, those that are null cost nothing and the
-- others use their index (hence the pattern that stands alone).
create or replace function is_allowed(
    d_uri text, d_metadata jsonb, d_labels text[], d_published_at timestamptz, p_metadata jsonb, p_uri text[], p_documents text[],
    p_labels text[], p_any_label text[], p_published_from timestamptz, p_published_until timestamptz)
returns boolean
language sql immutable
as $f$
    select (p_metadata is null or d_metadata @> p_metadata)
        and (p_uri is null or d_uri like any (p_uri))
        and (p_uri is null or cardinality(p_uri) <> 1 or d_uri like p_uri[1])
        and (p_documents is null or d_uri = any (p_documents))
        and (p_labels is null or d_labels @> p_labels)
        and (p_any_label is null or d_labels && p_any_label)
        and (p_published_from is null or d_published_at >= p_published_from)
        and (p_published_until is null or d_published_at <= p_published_until)
$f$;
comment on function is_allowed(text, jsonb, text[], timestamptz, jsonb, text[], text[], text[], text[], timestamptz, timestamptz) is
    'Whether a document (uri, metadata, labels, date) meets the conditions that filter_parts gives';

-- scope_chunks: the passages that a filtered search looks at. All that are allowed, where these are p_bound at most. Else those of them
-- that may matter: the nearest to the question and, with p_graph, those with its rarest words, those of the facts nearest to its vectors,
-- and those that the entities named or found in these facts come from: a few hundred, so that the rest of a search costs the same
-- however many are allowed.
create or replace function scope_chunks(
    p_filter jsonb, p_question halfvec, p_graph boolean default false, p_low halfvec default null, p_high halfvec default null,
    p_word text[] default '{}', p_keys text[] default '{}', p_limit integer default 100, p_bound integer default 500)
returns bigint[]
language plpgsql stable
set search_path from current
set plan_cache_mode = force_custom_plan
set jit = off
set hnsw.ef_search = 100
set hnsw.iterative_scan = relaxed_order
set hnsw.max_scan_tuples = 20000
set hnsw.scan_mem_multiplier = 4
as $f$
#variable_conflict use_column
declare
    f record;
    v_exact integer;        -- so many passages are measured one by one before the index is walked: both cost the same about here
    v_chunk bigint[];
    v_scope bigint[];
    v_fact bigint[] := '{}';
    v_rare tsquery;
    v_vector halfvec;
begin
    select * into f from filter_parts(p_filter);
    select greatest(p_bound, sqrt(500 * max(chunks)))::integer into v_exact from lexeme where word = '';
    v_exact := coalesce(v_exact, p_bound);
    select array_agg(id) into v_chunk from (
        select c.id from document d join chunk c on c.document_id = d.id
        where is_allowed(d.uri, d.metadata, d.labels, d.published_at, f.metadata, f.uri, f.documents, f.labels, f.any_label,
                         f.published_from, f.published_until)
        limit v_exact + 1) c;
    if coalesce(cardinality(v_chunk), 0) <= p_bound then
        return coalesce(array(select unnest(v_chunk) order by 1), '{}');
    end if;

    if cardinality(v_chunk) <= v_exact then
        with near as materialized (
            select chunk_id, embedding <=> p_question as distance from chunk_vector
            where p_question is not null and chunk_id = any (v_chunk)
        )
        select array_agg(chunk_id) into v_scope from (select chunk_id from near order by distance limit p_limit) n;
    else
        select array_agg(chunk_id) into v_scope from (
            select chunk_id from chunk_vector v
            where p_question is not null and (
                select is_allowed(d.uri, d.metadata, d.labels, d.published_at, f.metadata, f.uri, f.documents, f.labels, f.any_label,
                                  f.published_from, f.published_until)
                from chunk c join document d on d.id = c.document_id where c.id = v.chunk_id)
            order by embedding <=> p_question limit p_limit) n;
        if p_question is not null and coalesce(cardinality(v_scope), 0) < p_limit then  -- they are few around the question: all are measured
            with near as materialized (
                select chunk_id, embedding <=> p_question as distance
                from document d join chunk c on c.document_id = d.id join chunk_vector v on v.chunk_id = c.id
                where is_allowed(d.uri, d.metadata, d.labels, d.published_at, f.metadata, f.uri, f.documents, f.labels, f.any_label,
                                 f.published_from, f.published_until)
            )
            select array_agg(chunk_id) into v_scope from (select chunk_id from near order by distance limit p_limit) n;
        end if;
    end if;

    if not p_graph then
        return coalesce(array(select unnest(v_scope) order by 1), '{}');
    end if;

    select string_agg(quoted_word(word), ' | ')::tsquery into v_rare
    from (select *, sum(chunks) over (order by n) as total from search_terms(p_word)) t where total <= 2000 or n = 1;
    v_scope := v_scope || array(
        select chunk_id from chunk_search s
        where words @@ v_rare and (
            select is_allowed(d.uri, d.metadata, d.labels, d.published_at, f.metadata, f.uri, f.documents, f.labels, f.any_label,
                              f.published_from, f.published_until)
            from chunk c join document d on d.id = c.document_id where c.id = s.chunk_id)
        limit 200);

    for v_vector in select distinct v from unnest(array[p_question, p_low, p_high]) as v where v is not null loop
        if cardinality(v_chunk) <= least(v_exact, 4 * p_bound) then
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
                    select is_allowed(d.uri, d.metadata, d.labels, d.published_at, f.metadata, f.uri, f.documents, f.labels, f.any_label,
                                      f.published_from, f.published_until)
                    from fact t join chunk c on c.id = t.chunk_id join document d on d.id = c.document_id where t.id = v.fact_id)
                order by embedding <=> v_vector limit 100);
        end if;
    end loop;

    -- of an entity 1,000 source links are read at most, whoever may see them: a hub costs what any entity costs
    with entity as (
        select a.entity_id, k.n - 1000 as n from unnest(p_keys) with ordinality as k (key, n) join entity_alias a using (key)
        union all
        select e.entity_id, t.n from unnest(v_fact) with ordinality as t (id, n) join fact_entity e on e.fact_id = t.id
    ), source as (
        select m.chunk_id
        from (select entity_id from entity group by entity_id order by min(n), entity_id limit 40) e
        cross join lateral (
            select l.chunk_id
            from (select chunk_id from mention where entity_id = e.entity_id and chunk_id is not null order by chunk_id limit 1000) l
            where (
                select is_allowed(d.uri, d.metadata, d.labels, d.published_at, f.metadata, f.uri, f.documents, f.labels, f.any_label,
                                  f.published_from, f.published_until)
                from chunk c join document d on d.id = c.document_id where c.id = l.chunk_id)
            limit 20) m
    )
    select array_agg(id order by id) into v_scope from (
        select unnest(v_scope) as id
        union select chunk_id from fact where id = any (v_fact)
        union select chunk_id from source
    ) u;
    return coalesce(v_scope, '{}');
end $f$;
comment on function scope_chunks(jsonb, halfvec, boolean, halfvec, halfvec, text[], text[], integer, integer) is
    'Ids of the passages that a filter allows; where they are more than p_bound, those of them that may matter for a question: the nearest
and, with p_graph, those of its words, facts and names';
