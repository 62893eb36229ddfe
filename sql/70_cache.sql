-- Responses of language models: stored by themselves before anything is made of them, gone with the texts they were
-- made from.

create or replace function get_cached(p_key text[])
returns table (key text, response text)
language sql stable
set search_path from current
as $f$
    select k.key, k.response from llm_cache k where k.key = any (p_key)
$f$;
comment on function get_cached(text[]) is 'Cached responses by key';

-- add_usage, count_usage: what a call cost
create or replace function add_usage(
    p_purpose text, p_model text, p_document bigint, p_prompt_tokens bigint, p_completion_tokens bigint, p_cost numeric)
returns void
language sql
set search_path from current
as $f$
    insert into llm_usage as u (purpose, model, document_id, calls, prompt_tokens, completion_tokens, cost)
    values (p_purpose, p_model, p_document, 1, p_prompt_tokens, p_completion_tokens, p_cost)
    on conflict on constraint llm_usage_purpose_model_document_id_day_key do update
    set calls = u.calls + 1, prompt_tokens = u.prompt_tokens + excluded.prompt_tokens,
        completion_tokens = u.completion_tokens + excluded.completion_tokens, cost = u.cost + excluded.cost
$f$;
comment on function add_usage(text, text, bigint, bigint, bigint, numeric) is 'Adds one call to llm_usage';

create or replace function count_usage(
    p_code text, p_purpose text, p_model text, p_prompt_tokens bigint, p_completion_tokens bigint, p_cost numeric)
returns void
language plpgsql
set search_path from current
as $f$
begin
    perform raise_unless_current(p_code);
    perform add_usage(p_purpose, p_model, null, p_prompt_tokens, p_completion_tokens, p_cost);
end $f$;
comment on function count_usage(text, text, text, bigint, bigint, numeric) is
    'Counts a model call whose response is not kept';

-- corpus_state: the row that counts all chunks is written anew whenever texts come or go
create or replace function corpus_state() returns text
language sql
set search_path from current
as $f$
    select coalesce((select l.xmin::text from lexeme l where l.word = ''), '')
$f$;
comment on function corpus_state() is 'Changes whenever texts are added or removed';

-- put_cached: the last answer to a request stays (it was asked again because the first was of no use); its sources are
-- added to. A response made from a text that is gone meanwhile is only counted: it would never go. An answer is made
-- from descriptions of many texts: it is kept only in the p_state it was asked in.
create or replace function put_cached(
    p_code text, p_key text, p_purpose text, p_model text, p_response text, p_prompt_tokens bigint,
    p_completion_tokens bigint, p_cost numeric, p_chunk bigint[], p_state text default null)
returns void
language plpgsql
set search_path from current
as $f$
begin
    perform raise_unless_current(p_code);
    perform 1 from chunk c where c.id = any (p_chunk) order by c.id for key share;
    if p_state is not null then  -- a deletion under way ends first
        perform 1 from lexeme l where l.word = '' for share;
    end if;
    if not exists (select from unnest(p_chunk) as p (id) where not exists (select from chunk c where c.id = p.id))
       and (p_state is null or p_state = corpus_state()) then
        insert into llm_cache (key, purpose, model, response, prompt_tokens, completion_tokens, cost)
        values (p_key, p_purpose, p_model, p_response, p_prompt_tokens, p_completion_tokens, p_cost)
        on conflict on constraint llm_cache_pkey do update
        set response = excluded.response, prompt_tokens = excluded.prompt_tokens,
            completion_tokens = excluded.completion_tokens,
            cost = excluded.cost, created_at = excluded.created_at;
        insert into llm_cache_source (cache_key, chunk_id)
        select distinct p_key, p.id from unnest(p_chunk) as p (id)
        on conflict on constraint llm_cache_source_pkey do nothing;
    end if;
    perform add_usage(p_purpose, p_model, (select min(c.document_id) from chunk c
                                           where c.id = any (p_chunk)), p_prompt_tokens,
                      p_completion_tokens, p_cost);
end $f$;
comment on function put_cached(text, text, text, text, text, bigint, bigint, numeric, bigint[], text) is
    'Keeps a paid response with the chunks it was made from, and counts it in llm_usage';
