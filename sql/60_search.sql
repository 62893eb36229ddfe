-- Full text: true BM25 on stock PostgreSQL. The word index finds candidates by the rarest words of the question; each
-- is scored from counts alone, with the average length of now, so that no insert or delete makes a score wrong; the
-- cost does not grow with the chunks.

-- search_terms: words of a question, rarest first; a word never seen is rare, one in over 60 % of the chunks says
-- nothing
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

-- quoted_word: as tsquery wants it
create or replace function quoted_word(p_word text) returns text
language sql immutable
as $f$
    select '''' || replace(replace(p_word, '\', '\\'), '''', '''''') || ''''
$f$;
comment on function quoted_word(text) is 'A word quoted for a tsquery';

-- word_scores: BM25 of one chunk for words with their idf, k1 1.2, b .75 (Robertson and Zaragoza 2009), over all of
-- them and over those of each part of a question. Inlined. Words asked for are labelled and the others dropped, for to
-- take all apart is slow.
create or replace function word_scores(
    p_words tsvector, p_length integer, p_word text[], p_idf double precision[], p_part integer[],
    p_average double precision)
returns table (score double precision, a double precision, b double precision, c double precision, d double precision)
language sql immutable
as $f$
    select sum(w), sum(w) filter (where p_part[i] & 1 > 0), sum(w) filter (where p_part[i] & 2 > 0),
           sum(w) filter (where p_part[i] & 4 > 0), sum(w) filter (where p_part[i] & 8 > 0)
    from (
        select i, p_idf[i] * 2.2 * u.positions[1] / (u.positions[1] + 1.2 * (.25 + .75 * (p_length / p_average))) as w
        from unnest(ts_filter(setweight(p_words, 'A', p_word), '{a}')) as u, array_position(p_word, u.lexeme) as i
    ) v
$f$;
comment on function word_scores(tsvector, integer, text[], double precision[], integer[], double precision) is
    'BM25 of a chunk for words, over all of them and over those of each of up to four parts of a question';

-- search_words: the best chunks by BM25 among at most 2 * p_budget candidates: those with one of the rarest words
-- (whose frequencies sum to p_budget at most; the rarest in any case) and others with two of the next three words. With
-- p_chunk only these chunks, and all of them that have one of the words, with the idf of the whole workspace. p_part:
-- of each word the parts of the question it stands in, a bit for each of up to four; part is then the best share that
-- the chunk has of what any chunk has for one of them (0 to 1; 0 without parts), and counts as much as the share for
-- the whole.
create or replace function search_words(
    p_word text[], p_limit integer default 100, p_budget integer default 600, p_part integer[] default '{}',
    p_chunk bigint[] default null)
returns table (chunk_id bigint, score double precision, part double precision)
language plpgsql stable rows 100
set search_path from current
set jit = off
set enable_seqscan = off
as $f$
#variable_conflict use_column
declare
    v_rare tsquery;
    v_pairs tsquery;
    v_any tsquery;
    v_all boolean;
    v_word text[];
    v_idf double precision[];
    v_part integer[];
    v_average double precision;
begin
    with term as materialized (
        select t.*, sum(t.chunks) over (order by t.n) as total, quoted_word(t.word) as quoted
        from search_terms(p_word) t
    ), common as (
        select * from term where total > p_budget order by n limit 3
    ), part_of as (
        select word, bit_or(part) as part from unnest(p_word, p_part) as u (word, part) group by word
    )
    select (string_agg(quoted, ' | ') filter (where total <= p_budget or n = 1))::tsquery,
           string_agg(quoted, ' | ')::tsquery,
           (select string_agg('(' || a.quoted || ' & ' || b.quoted || ')', ' | ')
            from common a join common b on a.n < b.n)::tsquery,
           bool_or(total <= p_budget), array_agg(word order by n), array_agg(idf order by n),
           array_agg(coalesce(part, 0) order by n)
    into v_rare, v_any, v_pairs, v_all, v_word, v_idf, v_part
    from term left join part_of using (word);
    if v_word is null then
        return;
    end if;
    if p_chunk is not null then
        v_rare := null;
        v_pairs := null;
    elsif v_all then  -- no chunk twice; where not all of the rarest word can be taken, those of a pair come first
        v_pairs := v_pairs && !!v_rare;
    else
        v_rare := coalesce(v_rare && !!v_pairs, v_rare);
    end if;
    select l.occurrences::double precision / l.chunks into v_average from lexeme l where l.word = '';
    return query
    select chunk_id, score, part
    from (
        select chunk_id, score, max(score) over () as best,
               coalesce(greatest(a / max(a) over (), b / max(b) over (), c / max(c) over (), d / max(d) over ()),
                        0) as part
        from (
            (select chunk_id, length, words from chunk_search where words @@ v_rare limit p_budget)
            union all
            (select chunk_id, length, words from chunk_search where words @@ v_pairs limit p_budget)
            union all
            select chunk_id, length, words from chunk_search where chunk_id = any (p_chunk) and words @@ v_any
        ) found
        cross join lateral word_scores(found.words, found.length, v_word, v_idf, v_part, v_average)
    ) scored
    order by score / best + part desc, chunk_id limit p_limit;
end $f$;
comment on function search_words(text[], integer, integer, integer[], bigint[]) is
    'The best chunks for folded words by BM25, best first, of all or of those listed';

-- change_settings: sets parameters and returns what they were, so that a second call with that puts them back.
-- Parameters of extensions cannot stand in the header of a function (a restored dump would lack the right to set them),
-- and set_config() outlives a function. The extensions' libraries are loaded first: what was set before would not be
-- known to be theirs.
create or replace function change_settings(p_name text[], p_value text[]) returns text[]
language plpgsql stable
set search_path from current
as $f$
declare
    v_before text[];
begin
    perform '[1]'::halfvec, 'a' % 'a';
    for i in 1..cardinality(p_name) loop
        v_before[i] := current_setting(p_name[i]);
        perform set_config(p_name[i], p_value[i], true);
    end loop;
    return v_before;
end $f$;
comment on function change_settings(text[], text[]) is
    'Sets parameters for the transaction and returns their former values, with which a second call puts them back';

-- search_breadth: hnsw.ef_search for these tables of vectors. An index finds less of what is near the more vectors it
-- holds: the breadth grows 1.8 times with every ten-fold, from 100 at 50,000.
create or replace function search_breadth(variadic p_table text[])
returns integer
language plpgsql stable
set search_path from current
as $f$
begin
    return least(1000, 100 * greatest(1, (
        select max((select greatest(c.reltuples, 0) from pg_class c where c.oid = to_regclass(t.name))) / 50000
        from unnest(p_table) as t (name)) ^ .25));
end $f$;
comment on function search_breadth(text[]) is
    'How many candidates an HNSW scan of tables of this size keeps (hnsw.ef_search): 100 up to 50,000 vectors, 1.8 '
    'times as many with every ten-fold';

-- begin_scan, end_scan: around a scan of vectors, which keeps p_least candidates at least. What was deleted lies dead
-- in the index until a vacuum and is among the candidates: the scan goes on until there are as many living rows as are
-- asked for, hnsw.ef_search of them.
create or replace function begin_scan(p_least integer, variadic p_table text[]) returns text[]
language plpgsql stable
set search_path from current
as $f$
begin
    return change_settings('{hnsw.ef_search,hnsw.iterative_scan}',
                           array[least(1000, greatest(p_least, search_breadth(variadic p_table)))::text,
                                 'relaxed_order']);
end $f$;
comment on function begin_scan(integer, text[]) is
    'Sets hnsw.ef_search and hnsw.iterative_scan for tables of vectors and returns what they were';

create or replace function end_scan(p_before text[]) returns void
language plpgsql stable
set search_path from current
as $f$
begin
    perform change_settings('{hnsw.ef_search,hnsw.iterative_scan}', p_before);
end $f$;
comment on function end_scan(text[]) is 'Sets what begin_scan set to what it was before';

-- contrast: do the best of these scores (best first) stand out from the rest? Of the best and the 20th and the 100th
-- (or the last) of them the ratio of distances, over what it is where nothing stands out and scores fall off
-- exponentially, ln 20 / ln 100: then 1, whatever the scale of the scores and however many there are below. A few
-- scores alone tell nothing: null.
create or replace function contrast(p_score double precision[])
returns double precision
language sql immutable
as $f$
    select case when n >= 10 then
            (p_score[1] - p_score[near]) / nullif(p_score[1] - p_score[n], 0) * ln(n) / ln(near) end
    from (select n, least(20, n / 5) as near from (select least(100, cardinality(p_score)) as n) c) d
$f$;
comment on function contrast(double precision[]) is
    'Of scores, best first: how far the best stand out from the rest; 1 where they do not (exponential fall), up to '
    '1.5';

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
comment on function rank_facts(halfvec, bigint[], integer) is
    'Facts of the given chunks, nearest to the question first';
