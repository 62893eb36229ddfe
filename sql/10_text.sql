-- Errors and checks shared by all functions. Every file runs with search_path = workspace schema, then the extensions'
-- schemas; "set search_path from current" keeps it, so a caller's own search_path never matters.

-- raise_unless_current: refuses work from a process whose code is of another release than the database's
create or replace function raise_unless_current(p_code text) returns void
language plpgsql stable
set search_path from current
as $f$
begin
    if p_code is distinct from code_digest() then
        raise exception 'the database runs SQL code %, this process wants %', code_digest(),
            p_code using errcode = 'PGR01';
    end if;
end $f$;
comment on function raise_unless_current(text) is
    'Raises PGR01 unless the caller''s release is the one the SQL code tree belongs to';

-- line_bytes: what a context line of these parts takes at most, as no tokenizer makes more tokens than bytes (64: names
-- of its fields)
create or replace function line_bytes(p_parts text[]) returns integer
language sql immutable
as $f$
    select 64 + coalesce(sum(octet_length(to_json(part)::text)), 0)::integer from unnest(p_parts) as part
$f$;
comment on function line_bytes(text[]) is 'An upper bound of the tokens of a context line made of these texts';

-- dated: a fragment with the date of its document, where that is known
create or replace function dated(p_text text, p_published_at timestamptz) returns text
language sql stable
as $f$
    select coalesce('(' || to_char(p_published_at at time zone 'UTC', 'YYYY-MM-DD') || ') ', '') || p_text
$f$;
comment on function dated(text, timestamptz) is 'A text with the date of the document it comes from before it';
