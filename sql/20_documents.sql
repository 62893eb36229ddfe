-- Documents and their chunks: what is there, putting them in, taking them out.

-- document_states: what the skip rule needs to know
create or replace function document_states(p_uri text[])
returns table (uri text, sha256 text, settings_digest text, status text)
language sql stable
set search_path from current
as $f$
    select d.uri, d.sha256, d.settings_digest, d.status from document d where d.uri = any (p_uri)
$f$;
comment on function document_states(text[]) is
    'Digest and state of the documents with these uris; absent ones give no row';

-- settle_documents: status from the chunks. Locks first, so that the second of two workers sees what the first wrote.
create or replace function settle_documents(p_document bigint[]) returns void
language plpgsql
set search_path from current
as $f$
begin
    perform 1 from document d where d.id = any (p_document) order by d.id for no key update;
    update document d set status = s.status, error = s.error
    from (
        select
            c.document_id,
            case
                when bool_or(c.extracted_at is null and c.retry_at is distinct from 'infinity') then 'pending'
                when bool_or(c.extracted_at is null) then 'failed'
                when not bool_or(exists (select from mention m where m.chunk_id = c.id)) then 'empty'
                else 'complete'
            end as status,
            min('chunk ' || c.ordinal || ': ' || c.error) filter (where c.retry_at = 'infinity') as error
        from chunk c where c.document_id = any (p_document) group by c.document_id
    ) s
    where d.id = s.document_id and (d.status, d.error) is distinct from (s.status, s.error);
end $f$;
comment on function settle_documents(bigint[]) is 'Recomputes status and error of documents from their chunks';

-- lock_uris: whoever puts or deletes documents is alone with their uris, whether there is a row yet or not
create or replace function lock_uris(p_uri text[]) returns void
language plpgsql
set search_path from current
as $f$
begin
    perform pg_advisory_xact_lock(key)
    from (select distinct hashtextextended(t.uri, 'document'::regclass::oid::bigint) as key
          from unnest(p_uri) as t (uri) order by key) k;
    perform 1 from document d where d.uri = any (p_uri) order by d.id for update;
end $f$;
comment on function lock_uris(text[]) is 'Locks documents that are put or deleted, until the transaction ends';

-- hold_documents: before chunks are written: nobody puts or deletes their documents meanwhile. Everywhere documents are
-- locked before chunks, and in the order of their ids.
create or replace function hold_documents(p_chunk bigint[]) returns void
language plpgsql
set search_path from current
as $f$
begin
    perform 1 from document d
    where d.id = any (array(select c.document_id from chunk c where c.id = any (p_chunk)))
    order by d.id for key share;
end $f$;
comment on function hold_documents(bigint[]) is 'Locks the documents of chunks, so that they are not put or deleted';

-- add_words: word index and counts of new chunks. Rows are locked in word order, so writers never deadlock. A tsvector
-- holds words of 1 to 2046 bytes, less than 1 MB of them: a chunk beyond that is indexed by the words that it says
-- most.
create or replace function add_words(p_chunk bigint[], p_word text[], p_count integer[]) returns void
language plpgsql
set search_path from current
as $f$
declare
    v_length integer[];
begin
    select array_agg(chunk_id), array_agg(word), array_agg(count), array_agg(length)
    into p_chunk, p_word, p_count, v_length
    from (
        select t.*, sum(count) over (partition by chunk_id)::integer as length,
               sum(octet_length(word) + 5) filter (where octet_length(word) between 1 and 2046)
                   over (partition by chunk_id order by count desc, word collate "C" rows unbounded preceding) as bytes
        from unnest(p_chunk, p_word, p_count) as t (chunk_id, word, count)
    ) w
    where octet_length(word) between 1 and 2046 and bytes < 1048576;

    insert into lexeme as l (word, chunks, occurrences)
    select w.word, w.chunks, w.occurrences from (
        select word, count(distinct chunk_id) as chunks, 0 as occurrences
        from unnest(p_chunk, p_word) as t (chunk_id, word) group by word
        union all
        select '', count(*), coalesce(sum(length), 0)
        from (select distinct chunk_id, length from unnest(p_chunk, v_length) as t (chunk_id, length)) c
    ) w
    order by w.word collate "C"
    on conflict (word) do update
    set chunks = l.chunks + excluded.chunks, occurrences = l.occurrences + excluded.occurrences;

    insert into chunk_search (chunk_id, length, words)
    select chunk_id, min(length),
           string_agg(
               '''' || replace(replace(word, '\', '\\'), '''', '''''') || ''':' || least(count, 16383), ' ')::tsvector
    from unnest(p_chunk, p_word, p_count, v_length) as t (chunk_id, word, count, length) group by chunk_id;
end $f$;
comment on function add_words(bigint[], text[], integer[]) is
    'Enters the distinct words of new chunks (parallel arrays: chunk, word, count) into the word index';

-- forget_summaries: before chunks go: a summary goes with any text that it was made from
create or replace function forget_summaries(p_chunk bigint[]) returns void
language plpgsql
set search_path from current
as $f$
declare
    v_entity bigint[];
    v_relation bigint[];
begin
    select array_agg(distinct m.entity_id order by m.entity_id) into v_entity
    from mention m where m.chunk_id = any (p_chunk) and m.summarised;
    update entity e set summary = null where e.id = any (v_entity);
    update mention m set summarised = false where m.entity_id = any (v_entity) and m.summarised;
    select array_agg(distinct f.relation_id order by f.relation_id) into v_relation
    from fact f where f.chunk_id = any (p_chunk) and f.summarised and f.relation_id is not null;
    update relation r set summary = null where r.id = any (v_relation);
    update fact f set summarised = false where f.relation_id = any (v_relation) and f.summarised;
end $f$;
comment on function forget_summaries(bigint[]) is 'Takes back the summaries that texts of these chunks went into';

-- remove_chunks: chunks with everything that came from them. Names and descriptions of what remains are composed again.
create or replace function remove_chunks(p_chunk bigint[], p_fragments integer, p_tokens integer)
returns table (facts bigint, entities bigint, relations bigint)
language plpgsql
set search_path from current
as $f$
declare
    v_entities bigint[];
    v_relations bigint[];
    v_word text[];
begin
    perform 1 from chunk c where c.id = any (p_chunk) order by c.id for update;
    select array_agg(distinct m.entity_id order by m.entity_id) into v_entities from mention m
    where m.chunk_id = any (p_chunk);
    select array_agg(distinct f.relation_id order by f.relation_id), count(*) into v_relations, facts
    from fact f where f.chunk_id = any (p_chunk);
    v_relations := array_remove(v_relations, null);

    -- a cached response lives on only where every text it was made from does; twins are locked, or two could take them
    -- both
    insert into llm_cache_source (cache_key, chunk_id)
    select distinct s.cache_key, twin.id
    from llm_cache_source s join chunk c on c.id = s.chunk_id
    cross join lateral (
        select t.id from chunk t
        where t.sha256 = c.sha256 and t.headings = c.headings and t.id <> all (p_chunk) order by t.id
        limit 1 for key share
    ) twin
    where s.chunk_id = any (p_chunk)
    on conflict do nothing;
    delete from llm_cache k using llm_cache_source s, chunk c
    where s.cache_key = k.key and c.id = s.chunk_id and c.id = any (p_chunk)
      and not exists (select from chunk t
                      where t.sha256 = c.sha256 and t.headings = c.headings and t.id <> all (p_chunk));

    v_word := array(
        select distinct unnest(tsvector_to_array(s.words)) from chunk_search s where s.chunk_id = any (p_chunk));
    perform 1 from lexeme l where l.word = any (v_word || ''::text) order by l.word collate "C" for update;
    -- a context holds descriptions made from many texts; a question and the turns before it may say what only these
    -- texts said. After the lock, for which put_cached waits.
    delete from llm_cache k where k.purpose in ('answer', 'keywords', 'evaluate');
    update lexeme l set chunks = l.chunks - w.chunks, occurrences = l.occurrences - w.occurrences
    from (
        select unnest(tsvector_to_array(s.words)) as word, count(*) as chunks, 0 as occurrences
        from chunk_search s where s.chunk_id = any (p_chunk) group by 1
    ) w
    where l.word = w.word and l.word = any (v_word);
    insert into lexeme as l (word, chunks, occurrences)  -- also where they have no words: the corpus_state changes
    select '', -count(*), -coalesce(sum(s.length), 0) from chunk_search s where s.chunk_id = any (p_chunk)
    on conflict (word) do update
    set chunks = l.chunks + excluded.chunks, occurrences = l.occurrences + excluded.occurrences;
    delete from lexeme l where l.chunks <= 0 and l.word <> '' and l.word = any (v_word);

    -- what is derived is written by one at a time, entities before relations before what states them
    perform 1 from entity e where e.id = any (v_entities) order by e.id for no key update;
    perform 1 from relation r where r.id = any (v_relations) order by r.id for no key update;
    perform forget_summaries(p_chunk);
    delete from chunk c where c.id = any (p_chunk);
    select d.entities, d.relations into entities, relations
    from derive_again(v_entities, v_relations, p_fragments, p_tokens) d;
    return next;
end $f$;
comment on function remove_chunks(bigint[], integer, integer) is
    'Removes chunks, their facts, mentions, words and cached responses, and composes again what remains; returns what '
    'is gone';

-- put_documents: documents with their chunks, in one transaction. A chunk whose text and headings did not change keeps
-- its extraction. Chunk arrays are parallel; p_c_document is the place of the chunk's document in p_uri, from 1.
create or replace function put_documents(
    p_code text, p_fragments integer, p_tokens integer, p_settings_digest text, p_uri text[], p_title text[],
    p_mime text[], p_sha256 text[], p_metadata jsonb[], p_labels jsonb[], p_body text[], p_published_at timestamptz[],
    p_c_document integer[], p_c_ordinal integer[], p_c_body text[], p_c_sha256 text[], p_c_start integer[],
    p_c_end integer[], p_c_page integer[], p_c_headings jsonb[], p_c_tokens integer[], p_w_chunk integer[],
    p_w_word text[], p_w_count integer[])
returns table (uri text, document_id bigint, added boolean, chunks integer, reused integer)
language plpgsql
set search_path from current
as $f$
declare
    v_document bigint[];
    v_added boolean[];
    v_redated bigint[];
    v_gone bigint[];
    v_reused bigint[];
    v_chunk bigint[];
begin
    perform raise_unless_current(p_code);
    perform lock_uris(p_uri);
    with before as (
        select d.id, d.published_at from document d where d.uri = any (p_uri)
    ), put as (
        insert into document as d (uri, title, mime, sha256, settings_digest, metadata, labels, body, tokens,
                                   published_at)
        select t.uri, t.title, t.mime, t.sha256, p_settings_digest, t.metadata,
               array(select jsonb_array_elements_text(t.labels)), t.body,
               coalesce((select sum(c.tokens) from unnest(p_c_document, p_c_tokens) as c (document, tokens)
                         where c.document = t.i), 0),
               t.published_at
        from unnest(p_uri, p_title, p_mime, p_sha256, p_metadata, p_labels, p_body, p_published_at) with ordinality
             as t (uri, title, mime, sha256, metadata, labels, body, published_at, i)
        order by t.uri collate "C"
        on conflict on constraint document_uri_key do update
        set title = excluded.title, mime = excluded.mime, sha256 = excluded.sha256,
            settings_digest = excluded.settings_digest,
            metadata = excluded.metadata, labels = excluded.labels, body = excluded.body, tokens = excluded.tokens,
            published_at = excluded.published_at, status = 'pending', error = null, updated_at = now()
        returning d.id, d.uri, d.xmax = 0 as added, d.published_at
    )
    select array_agg(put.id order by t.i), array_agg(put.added order by t.i),
           array_agg(put.id) filter (where put.published_at is distinct from before.published_at)
    into v_document, v_added, v_redated
    from put join unnest(p_uri) with ordinality as t (uri, i) using (uri) left join before using (id);

    -- the n-th chunk with a text is the n-th old chunk with that text under the same headings
    with old as (
        select c.id, c.document_id, c.sha256, c.headings,
               row_number() over (partition by c.document_id, c.sha256, c.headings order by c.ordinal) as n
        from chunk c where c.document_id = any (v_document)
    ), new as (
        select t.i, v_document[t.document] as document_id, t.sha256,
               array(select jsonb_array_elements_text(t.headings)) as headings,
               row_number() over (partition by t.document, t.sha256, t.headings order by t.ordinal) as n
        from unnest(p_c_document, p_c_ordinal, p_c_sha256, p_c_headings)
             with ordinality as t (document, ordinal, sha256, headings, i)
    )
    select array_agg(old.id) filter (where new.i is null),
           array_agg(old.id order by new.i) filter (where new.i is not null)
    into v_gone, v_reused
    from old full join new using (document_id, sha256, headings, n);

    if v_gone is not null then
        perform remove_chunks(v_gone, p_fragments, p_tokens);
    end if;
    update chunk c
    set ordinal = t.ordinal, start_char = t.start_char, end_char = t.end_char, page = t.page
    from unnest(v_reused, p_c_ordinal, p_c_start, p_c_end, p_c_page) as t (id, ordinal, start_char, end_char, page)
    where c.id = t.id
      and (c.ordinal, c.start_char, c.end_char, c.page) is distinct from (t.ordinal, t.start_char, t.end_char, t.page);
    with put as (
        insert into chunk (document_id, ordinal, body, sha256, start_char, end_char, page, headings, tokens)
        select v_document[t.document], t.ordinal, t.body, t.sha256, t.start_char, t.end_char, t.page,
               array(select jsonb_array_elements_text(t.headings)), t.tokens
        from unnest(v_reused, p_c_document, p_c_ordinal, p_c_body, p_c_sha256, p_c_start, p_c_end, p_c_page,
                    p_c_headings, p_c_tokens)
             with ordinality as t (id, document, ordinal, body, sha256, start_char, end_char, page, headings, tokens, i)
        where t.id is null
        order by t.i
        returning id, chunk.document_id, ordinal
    )
    select array_agg(put.id order by t.i) into v_chunk
    from unnest(p_c_document, p_c_ordinal) with ordinality as t (document, ordinal, i)
    left join put on put.document_id = v_document[t.document] and put.ordinal = t.ordinal;
    perform add_words(coalesce(array_agg(v_chunk[w.chunk]), '{}'), coalesce(array_agg(w.word), '{}'),
                      coalesce(array_agg(w.count), '{}'))
    from unnest(p_w_chunk, p_w_word, p_w_count) as w (chunk, word, count) where v_chunk[w.chunk] is not null
    having array_remove(v_chunk, null) <> '{}';
    if v_redated is not null then  -- descriptions tell the date
        perform mark_chunks_stale(array(select c.id from chunk c where c.document_id = any (v_redated)));
    end if;
    perform settle_documents(v_document);

    return query
    select t.uri, t.id, t.added, count(c.document)::integer, count(c.id)::integer
    from unnest(p_uri, v_document, v_added) with ordinality as t (uri, id, added, i)
    left join unnest(p_c_document, v_reused) as c (document, id) on c.document = t.i
    group by t.i, t.uri, t.id, t.added order by t.i;
end $f$;
comment on function put_documents(text, integer, integer, text, text[], text[], text[], text[], jsonb[], jsonb[],
    text[], timestamptz[], integer[], integer[], text[], text[], integer[], integer[], integer[], jsonb[], integer[],
    integer[], text[], integer[]) is
    'Inserts or replaces documents and their chunks (parallel arrays); unchanged chunks keep what was extracted from '
    'them';

-- delete_documents: documents and every trace of them, in one transaction
create or replace function delete_documents(p_code text, p_fragments integer, p_tokens integer, p_uri text[])
returns table (uris text[], chunks bigint, facts bigint, entities bigint, relations bigint)
language plpgsql
set search_path from current
as $f$
declare
    v_chunk bigint[];
begin
    perform raise_unless_current(p_code);
    perform lock_uris(p_uri);
    select coalesce(array_agg(c.id), '{}') into v_chunk from chunk c join document d on d.id = c.document_id
    where d.uri = any (p_uri);
    chunks := cardinality(v_chunk);
    select r.facts, r.entities, r.relations into facts, entities, relations
    from remove_chunks(v_chunk, p_fragments, p_tokens) r;
    with gone as (
        delete from document d where d.uri = any (p_uri) returning d.uri
    )
    select coalesce(array_agg(gone.uri order by gone.uri), '{}') into uris from gone;
    return next;
end $f$;
comment on function delete_documents(text, integer, integer, text[]) is
    'Deletes documents with all that only they said; returns their uris and how many chunks, facts, entities and '
    'relations went';
