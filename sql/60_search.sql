-- Full text: true BM25 on stock PostgreSQL. The word index finds candidates by the rarest words of the question; each is scored from
-- counts alone, with the average length of now, so that no insert or delete makes a score wrong; the cost does not grow with the chunks.

-- search_terms: words of a question, rarest first; a word never seen is rare, one in over 60 % of the chunks says nothing
create or replace function search_terms(p_word text[])
returns table (n bigint, word text, chunks bigint, idf double precision)
language sql stable rows 12
set search_path from current
as $f$
    select row_number() over (order by l.chunks, t.word), t.word, l.chunks,
           ln(1 + (total.chunks - l.chunks + .5) / (l.chunks + .5))
    from (select distinct word from unnest(p_word) as u (word)) t
    join lexeme l on l.word = t.word
    join lexeme total on total.word = ''
    where l.chunks <= greatest(.6 * total.chunks, 1)
    order by 1 limit 64
$f$;
comment on function search_terms(text[]) is 'Words of a question that occur, rarest first, with their BM25 idf';

-- search_words: the best chunks by BM25 among at most 2 * p_budget candidates: those with one of the rarest words (whose
-- frequencies sum to p_budget at most; the rarest in any case) and others with two of the next three words
create or replace function search_words(p_word text[], p_limit integer default 100, p_budget integer default 600)
returns table (chunk_id bigint, score double precision)
language plpgsql stable rows 100
set search_path from current
set plan_cache_mode = force_generic_plan
set jit = off
set enable_seqscan = off
as $f$
#variable_conflict use_column
declare
    v_rare tsquery;
    v_pairs tsquery;
    v_all boolean;
    v_word text[];
    v_idf double precision[];
    v_average double precision;
begin
    with t as materialized (
        select s.*, sum(s.chunks) over (order by s.n) as total,
               '''' || replace(replace(s.word, '\', '\\'), '''', '''''') || '''' as q  -- quoted as tsquery wants it
        from search_terms(p_word) s
    ), common as (
        select * from t where total > p_budget order by n limit 3
    )
    select (string_agg(q, ' | ') filter (where total <= p_budget or n = 1))::tsquery,
           (select string_agg('(' || a.q || ' & ' || b.q || ')', ' | ') from common a join common b on a.n < b.n)::tsquery,
           bool_or(total <= p_budget), array_agg(word order by n), array_agg(idf order by n)
    into v_rare, v_pairs, v_all, v_word, v_idf from t;
    if v_word is null then
        return;
    end if;
    if v_all then  -- no chunk twice; where not all chunks of the rarest word can be taken, those of a pair come first
        v_pairs := v_pairs && !!v_rare;
    else
        v_rare := coalesce(v_rare && !!v_pairs, v_rare);
    end if;
    select l.occurrences::double precision / l.chunks into v_average from lexeme l where l.word = '';
    -- k1 1.2, b .75 (Robertson and Zaragoza 2009). Words asked for are labelled and the others dropped, for to take all apart is slow.
    return query
    select c.chunk_id,
           (select sum(v_idf[array_position(v_word, w.lexeme)] * 2.2 * w.positions[1]
                       / (w.positions[1] + 1.2 * (.25 + .75 * (c.length / v_average))))
            from unnest(ts_filter(setweight(c.words, 'A', v_word), '{a}')) w) as score
    from (
        (select chunk_id, length, words from chunk_search where words @@ v_rare limit p_budget)
        union all
        (select chunk_id, length, words from chunk_search where words @@ v_pairs limit p_budget)
    ) c
    order by 2 desc, 1 limit p_limit;
end $f$;
comment on function search_words(text[], integer, integer) is 'The best chunks for folded words by BM25, best first';

-- rank_facts: the facts of given chunks that are nearest to a question (what the keyless answer quotes)
create or replace function rank_facts(p_question halfvec, p_chunk bigint[], p_limit integer default 20)
returns table (chunk_id bigint, fact_id bigint, text text, score real)
language sql stable
set search_path from current
as $f$
    select f.chunk_id, f.id, f.text, (1 - (v.embedding <=> p_question))::real
    from fact f join fact_vector v on v.fact_id = f.id
    where f.chunk_id = any (p_chunk)
    order by v.embedding <=> p_question, f.id limit p_limit
$f$;
comment on function rank_facts(halfvec, bigint[], integer) is 'Facts of the given chunks, nearest to the question first';
