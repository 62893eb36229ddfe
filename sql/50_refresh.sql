-- Entities and relations are functions of the set of their mentions and facts: never of arrival order, ids or worker.
-- tokens is set to the size in bytes, which no tokenizer exceeds, until refresh has counted.

-- said_of: what is said of entities (p_kind 'entity': the descriptions of their mentions) or relations ('relation':
-- their facts), or only by these mentions or facts, where p_source lists them.
create or replace function said_of(p_kind text, p_owner bigint[], p_source bigint[] default null)
returns table (owner bigint, id bigint, chunk_id bigint, fragment text, strength real, tokens integer,
               summarised boolean)
language sql stable rows 100
set search_path from current
as $f$
    select m.entity_id, m.id, m.chunk_id, m.description, 0, m.tokens, m.summarised
    from mention m where p_kind = 'entity' and p_source is null and m.entity_id = any (p_owner)
    union all
    select m.entity_id, m.id, m.chunk_id, m.description, 0, m.tokens, m.summarised
    from mention m where p_kind = 'entity' and m.id = any (p_source)
    union all
    select f.relation_id, f.id, f.chunk_id, f.text, f.strength, f.tokens, f.summarised
    from fact f where p_kind = 'relation' and p_source is null and f.relation_id = any (p_owner)
    union all
    select f.relation_id, f.id, f.chunk_id, f.text, f.strength, f.tokens, f.summarised
    from fact f where p_kind = 'relation' and f.id = any (p_source)
$f$;
comment on function said_of(text, bigint[], bigint[]) is
    'What is said of entities or relations: all of it, or what the listed mentions or facts say';

-- ranked_fragments: what a description is made of, in the order in which it is taken: by hand, the newest, the
-- strongest, the longest. Without a list of sources those that a summary holds are left out. total: tokens up to and
-- with a fragment.
create or replace function ranked_fragments(p_kind text, p_owner bigint[], p_source bigint[] default null)
returns table (owner bigint, fragment text, published_at timestamptz, n bigint, tokens integer, total bigint)
language sql stable rows 100
set search_path from current
as $f$
    select owner, fragment, published_at, row_number() over taken, tokens,
           sum(tokens) over (taken rows unbounded preceding)
    from (
        select s.owner, s.fragment, max(d.published_at) as published_at, max(s.tokens) as tokens,
               max(s.strength) as strength,
               bool_or(s.chunk_id is null) as by_hand
        from said_of(p_kind, p_owner, p_source) s
        left join chunk c on c.id = s.chunk_id left join document d on d.id = c.document_id
        where s.fragment <> '' group by s.owner, s.fragment having p_source is not null or not bool_or(s.summarised)
    ) distinct_fragment
    window taken as (partition by owner
                     order by by_hand desc, published_at desc nulls last, strength desc, length(fragment) desc,
                     fragment collate "C")
$f$;
comment on function ranked_fragments(text, bigint[], bigint[]) is
    'The fragments of descriptions of entities or relations, in the order in which they are taken';

-- describe: descriptions: fragments until there are p_fragments or p_tokens, told oldest first. tokens bounds those of
-- the description in a context line: parts are counted; joints, dates and what JSON escapes are allowed for.
create or replace function describe(
    p_kind text, p_owner bigint[], p_source bigint[] default null, p_fragments integer default 50,
    p_tokens integer default 1200)
returns table (owner bigint, description text, tokens bigint)
language sql stable rows 100
set search_path from current
as $f$
    select owner, description, tokens + octet_length(to_json(description)::text) - octet_length(description)
    from (
        select owner, string_agg(dated(fragment, published_at), E'\n'
                                 order by published_at nulls first, n) as description,
               sum(tokens + 16) as tokens
        from ranked_fragments(p_kind, p_owner, p_source) where n <= p_fragments and (total <= p_tokens or n = 1)
        group by owner
    ) described
$f$;
comment on function describe(text, bigint[], bigint[], integer, integer) is
    'Descriptions of entities or relations, of all that is said of them or of what the listed mentions or facts say';

-- name_entities: what is written by hand, else most often, else first in the alphabet; type null where none is told
create or replace function name_entities(p_entity bigint[], p_mention bigint[] default null)
returns table (id bigint, name text, type text)
language sql stable rows 100
set search_path from current
as $f$
    with said as materialized (
        select m.entity_id, m.chunk_id, m.name, m.type from mention m
        where p_mention is null and m.entity_id = any (p_entity)
        union all
        select m.entity_id, m.chunk_id, m.name, m.type from mention m where m.id = any (p_mention)
    ), names as (
        select distinct on (entity_id) entity_id, name from said group by entity_id, name
        order by entity_id, bool_or(chunk_id is null) desc, count(*) desc, name collate "C"
    ), types as (
        select distinct on (entity_id) entity_id, type from said where type <> '' group by entity_id, type
        order by entity_id, bool_or(chunk_id is null) desc, count(*) desc, type collate "C"
    )
    select n.entity_id, n.name, t.type from names n left join types t using (entity_id)
$f$;
comment on function name_entities(bigint[], bigint[]) is
    'Name and type of entities, by all mentions or by the listed ones';

create or replace function relation_keywords(p_relation bigint[], p_fact bigint[] default null)
returns table (relation_id bigint, keywords text[])
language sql stable rows 100
set search_path from current
as $f$
    select relation_id, array_agg(distinct keyword collate "C" order by keyword collate "C")
    from (
        select f.relation_id, f.keywords from fact f where p_fact is null and f.relation_id = any (p_relation)
        union all
        select f.relation_id, f.keywords from fact f where f.id = any (p_fact)
    ) said cross join unnest(said.keywords) as keyword
    group by relation_id
$f$;
comment on function relation_keywords(bigint[], bigint[]) is
    'Keywords of relations, by all facts or by the listed ones';

-- weigh_relations: one text counts once, however often and wherever it says it; sums of doubles are exact, so their
-- order does not matter
create or replace function weigh_relations(p_relation bigint[], p_chunk bigint[] default null)
returns table (relation_id bigint, weight double precision)
language sql stable rows 100
set search_path from current
as $f$
    select relation_id, sum(strength::double precision)
    from (
        select said.relation_id, c.sha256, max(said.strength) as strength
        from (
            select f.relation_id, f.chunk_id, f.strength from fact f
            where p_chunk is null and f.relation_id = any (p_relation)
            union all
            select f.relation_id, f.chunk_id, f.strength from fact f
            where f.chunk_id = any (p_chunk) and f.relation_id is not null
        ) said left join chunk c on c.id = said.chunk_id
        group by said.relation_id, c.sha256
    ) text_said
    group by relation_id
$f$;
comment on function weigh_relations(bigint[], bigint[]) is
    'Weights of relations by all facts, or of all relations that the listed chunks state by what these state';

-- compose_entities: a relation's line and profile hold the names of its ends: those of an entity that gets another name
-- have their tokens bounded anew and are marked (so: entities first).
create or replace function compose_entities(p_entity bigint[], p_fragments integer, p_tokens integer) returns void
language plpgsql
set search_path from current
as $f$
declare
    v_relation bigint[];
begin
    with composed as (
        update entity e
        set name = n.name, type = coalesce(n.type, ''), description = concat_ws(E'\n', e.summary, d.description),
            mentions = (select count(distinct m.chunk_id) from mention m where m.entity_id = e.id),
            degree = (select count(*) from relation r where r.source = e.id)
                     + (select count(*) from relation r where r.target = e.id),
            tokens = line_bytes(array[n.name, n.type, concat_ws(E'\n', e.summary, d.description)])
        from name_entities(p_entity) n join entity before using (id)
        left join describe('entity', p_entity, null, p_fragments, p_tokens) d on d.owner = n.id
        where e.id = n.id
        returning e.id, e.name <> before.name as renamed
    )
    select array_agg(r.id order by r.id) into v_relation from (
        select r.id from composed c join relation r on r.source = c.id where c.renamed
        union
        select r.id from composed c join relation r on r.target = c.id where c.renamed
    ) r;
    if v_relation is not null then
        select array_agg(r.id) into v_relation  -- without those that a deletion takes away meanwhile
        from (select id from relation where id = any (v_relation) order by id for no key update) r;
        update relation r set tokens = line_bytes(array[s.name, t.name, r.description])
        from entity s, entity t where r.id = any (v_relation) and s.id = r.source and t.id = r.target;
        perform mark_stale('{}', v_relation);
    end if;
end $f$;
comment on function compose_entities(bigint[], integer, integer) is
    'Derives name, type, description and counts of entities from their mentions';

create or replace function compose_relations(p_relation bigint[], p_fragments integer, p_tokens integer) returns void
language plpgsql
set search_path from current
as $f$
begin
    update relation r
    set keywords = coalesce(k.keywords, '{}'), description = concat_ws(E'\n', r.summary, d.description),
        weight = w.weight,
        tokens = line_bytes(array[s.name, t.name, concat_ws(E'\n', r.summary, d.description)])
    from weigh_relations(p_relation) w
    left join describe('relation', p_relation, null, p_fragments, p_tokens) d on d.owner = w.relation_id
    left join relation_keywords(p_relation) k using (relation_id), entity s, entity t
    where r.id = w.relation_id and s.id = r.source and t.id = r.target;

    insert into adjacency as a (entity_id, relation_id, other_id, weight)
    select e.id, r.id, e.other, r.weight
    from relation r cross join lateral (values (r.source, r.target), (r.target, r.source)) as e (id, other)
    where r.id = any (p_relation)
    order by r.id, e.id
    on conflict on constraint adjacency_pkey do update set weight = excluded.weight where a.weight <> excluded.weight;
end $f$;
comment on function compose_relations(bigint[], integer, integer) is
    'Derives keywords, description and weight of relations from their facts, and their adjacency';

-- derive_again: after sources went. Orphans go (restrict keys make a race lose, not lose data; relations are locked
-- first, so that the delete sees a fact that was added meanwhile); the rest is composed now and embedded later.
create or replace function derive_again(p_entity bigint[], p_relation bigint[], p_fragments integer, p_tokens integer)
returns table (entities bigint, relations bigint)
language plpgsql
set search_path from current
as $f$
declare
    v_entity bigint[];
    v_relation bigint[];
begin
    -- remove_chunks has the entities and relations; the others follow in the order of everybody
    perform 1 from entity_alias a
    where a.entity_id = any (p_entity) and not exists (select from mention m where m.entity_id = a.entity_id)
    order by a.key collate "C" for update;
    perform 1 from relation r
    where r.id = any (p_relation) and not exists (select from fact f where f.relation_id = r.id)
    order by r.id for update;
    perform 1 from stale s
    where s.kind = 'entity' and s.id = any (p_entity) or s.kind = 'relation' and s.id = any (p_relation)
    order by s.kind, s.id for update;
    with gone as (
        delete from relation r
        where r.id = any (p_relation) and not exists (select from fact f where f.relation_id = r.id)
        returning r.id
    )
    select array_agg(gone.id) into v_relation from gone;
    with gone as (
        delete from entity e where e.id = any (p_entity) and not exists (select from mention m where m.entity_id = e.id)
        returning e.id
    )
    select array_agg(gone.id) into v_entity from gone;
    delete from stale s
    where s.kind = 'relation' and s.id = any (v_relation) or s.kind = 'entity' and s.id = any (v_entity);
    perform mark_stale(array(select e.id from entity e where e.id = any (p_entity)),
                       array(select r.id from relation r where r.id = any (p_relation)));
    perform compose_entities(p_entity, p_fragments, p_tokens);
    perform compose_relations(p_relation, p_fragments, p_tokens);
    delete from entity_vector v where v.entity_id = any (p_entity);
    delete from relation_vector v where v.relation_id = any (p_relation);
    entities := coalesce(cardinality(v_entity), 0);
    relations := coalesce(cardinality(v_relation), 0);
    return next;
end $f$;
comment on function derive_again(bigint[], bigint[], integer, integer) is
    'After deletions: removes entities and relations without a source, composes the others again and marks them for '
    'refresh';

-- lease_stale: the next stale rows of a kind, leased, with the rows that they mark: nobody waits for either here. Those
-- that are leased with this very token are of a claim whose reply never came.
create or replace function lease_stale(
    p_kind text, p_limit integer, p_lease_seconds double precision, p_lease_token uuid)
returns table (id bigint, version bigint)
language plpgsql
set search_path from current
as $f$
begin
    return query
    with entity_todo as (
        select s.kind, s.id from stale s join entity e on e.id = s.id
        where p_kind = 'entity' and s.kind = 'entity'
          and (s.lease_until is null or s.lease_until < now() or s.lease_token = p_lease_token)
        order by s.id limit p_limit for no key update of e, s skip locked
    ), relation_todo as (
        select s.kind, s.id from stale s join relation r on r.id = s.id
        where p_kind = 'relation' and s.kind = 'relation'
          and (s.lease_until is null or s.lease_until < now() or s.lease_token = p_lease_token)
        order by s.id limit p_limit for no key update of r, s skip locked
    ), todo as (
        select * from entity_todo union all select * from relation_todo
    )
    update stale s set lease_until = now() + make_interval(secs => p_lease_seconds), lease_token = p_lease_token
    from todo where s.kind = todo.kind and s.id = todo.id
    returning s.id, s.version;
end $f$;
comment on function lease_stale(text, integer, double precision, uuid) is
    'Leases stale entities or relations to a refreshing worker';

-- extend_stale: a refresh that waits for a model keeps its marks
create or replace function extend_stale(p_lease_token uuid[], p_lease_seconds double precision) returns bigint
language sql
set search_path from current
as $f$
    with kept as (
        update stale s set lease_until = now() + make_interval(secs => p_lease_seconds)
        where s.lease_token = any (p_lease_token)
        returning 1
    )
    select count(*) from kept
$f$;
comment on function extend_stale(uuid[], double precision) is
    'Prolongs the refresh leases with these tokens; returns how many marks are still held';

-- release_stale: gives leases back at once (an interrupted refresh); the marks stay
create or replace function release_stale(p_lease_token uuid[]) returns bigint
language sql
set search_path from current
as $f$
    with freed as (
        update stale s set lease_until = null, lease_token = null where s.lease_token = any (p_lease_token)
        returning 1
    )
    select count(*) from freed
$f$;
comment on function release_stale(uuid[]) is 'Gives marks back that were claimed with these tokens; returns how many';

-- claim_stale_entities, claim_stale_relations: leased, composed anew, and what is to be counted and embedded
create or replace function claim_stale_entities(
    p_code text, p_limit integer, p_lease_seconds double precision, p_lease_token uuid, p_fragments integer,
    p_tokens integer)
returns table (id bigint, version bigint, lease_token uuid, name text, type text, description text)
language plpgsql
set search_path from current
as $f$
declare
    v_id bigint[];
    v_version bigint[];
begin
    perform raise_unless_current(p_code);
    select array_agg(l.id), array_agg(l.version) into v_id, v_version
    from lease_stale('entity', p_limit, p_lease_seconds, p_lease_token) l;
    perform compose_entities(v_id, p_fragments, p_tokens);
    return query
    select e.id, t.version, p_lease_token, e.name, e.type, e.description
    from unnest(v_id, v_version) as t (id, version) join entity e on e.id = t.id order by e.id;
end $f$;
comment on function claim_stale_entities(text, integer, double precision, uuid, integer, integer) is
    'Leases stale entities, derives them anew and returns the text to count and to embed';

create or replace function claim_stale_relations(
    p_code text, p_limit integer, p_lease_seconds double precision, p_lease_token uuid, p_fragments integer,
    p_tokens integer)
returns table (id bigint, version bigint, lease_token uuid, source text, target text, keywords text[], description text)
language plpgsql
set search_path from current
as $f$
declare
    v_id bigint[];
    v_version bigint[];
begin
    perform raise_unless_current(p_code);
    select array_agg(l.id), array_agg(l.version) into v_id, v_version
    from lease_stale('relation', p_limit, p_lease_seconds, p_lease_token) l;
    perform compose_relations(v_id, p_fragments, p_tokens);
    return query  -- ids come in the order of arrival, names do not
    select r.id, t.version, p_lease_token, least(s.name collate "C", g.name collate "C"),
           greatest(s.name collate "C", g.name collate "C"),
           r.keywords, r.description
    from unnest(v_id, v_version) as t (id, version)
    join relation r on r.id = t.id join entity s on s.id = r.source join entity g on g.id = r.target order by r.id;
end $f$;
comment on function claim_stale_relations(text, integer, double precision, uuid, integer, integer) is
    'Leases stale relations, derives them anew and returns the text to count and to embed';

-- stale_fragments: what a summary is made of: the last summary and what it does not hold yet, the p_fragments newest;
-- source_ids are those of mentions or of facts. Most have a fragment or two: those that cannot have p_min_fragments,
-- nor p_min_tokens (a token has a byte at least), are left out before anything is put in order.
create or replace function stale_fragments(
    p_kind text, p_id bigint[], p_fragments integer, p_min_fragments integer, p_min_tokens integer)
returns table (id bigint, summary text, fragments text[], source_ids bigint[], chunk_ids bigint[])
language sql stable
set search_path from current
as $f$
    with source as materialized (
        select * from said_of(p_kind, p_id)
    ), long as (
        select owner from source group by owner
        having bool_or(summarised) or count(*) >= p_min_fragments
            or sum(octet_length(fragment) + octet_length('(2000-01-01) ')) > p_min_tokens
    ), kept as materialized (
        select * from ranked_fragments(p_kind, array(select owner from long)) where n <= p_fragments
    ), told as materialized (
        select owner, s.id, s.chunk_id from source s left join kept k using (owner, fragment)
        where k.n is not null or s.summarised
    ), owner as (
        select e.id, e.summary from entity e where p_kind = 'entity' and e.id in (select k.owner from kept k)
        union all
        select r.id, r.summary from relation r where p_kind = 'relation' and r.id in (select k.owner from kept k)
    )
    select o.id, o.summary,
           (select array_agg(dated(k.fragment, k.published_at) order by k.published_at nulls first, k.n) from kept k
            where k.owner = o.id),
           (select array_agg(i.id) from told i where i.owner = o.id),
           array(select distinct i.chunk_id from told i where i.owner = o.id and i.chunk_id is not null)
    from owner o order by o.id
$f$;
comment on function stale_fragments(text, bigint[], integer, integer, integer) is
    'For summaries of entities or relations: the last one and the fragments it does not hold, oldest first, with '
    'the sources of both; of those that may have so many fragments or tokens';

-- finish_stale: writes what was made of marks whose version has not moved and clears them; the others are free again at
-- once
create or replace function finish_stale(
    p_code text, p_kind text, p_id bigint[], p_version bigint[], p_lease_token uuid[], p_tokens integer[],
    p_vector halfvec[], p_summary text[], p_summarised bigint[])
returns bigint
language plpgsql
set search_path from current
as $f$
declare
    v_id bigint[];
begin
    perform raise_unless_current(p_code);
    if p_kind = 'entity' then
        perform 1 from entity e where e.id = any (p_id) order by e.id for no key update;
        perform 1 from mention m where m.id = any (p_summarised) order by m.id for no key update;
    else
        perform 1 from relation r where r.id = any (p_id) order by r.id for no key update;
        perform 1 from fact f where f.id = any (p_summarised) order by f.id for no key update;
    end if;
    perform 1 from stale s where s.kind = p_kind and s.id = any (p_id) order by s.id for update;
    with cleared as (
        delete from stale s using unnest(p_id, p_version, p_lease_token) as t (id, version, lease_token)
        where s.kind = p_kind and s.id = t.id and s.version = t.version and s.lease_token = t.lease_token
        returning s.id
    )
    select array_agg(c.id) into v_id from cleared c;
    update stale s set lease_until = null, lease_token = null
    from unnest(p_id, p_lease_token) as t (id, lease_token)
    where s.kind = p_kind and s.id = t.id and s.lease_token = t.lease_token;

    if p_kind = 'entity' then
        update entity e
        set tokens = t.tokens, summary = coalesce(t.summary, e.summary),
            description = coalesce(t.summary, e.description)
        from unnest(p_id, p_tokens, p_summary) as t (id, tokens, summary) where e.id = t.id and e.id = any (v_id);
        update mention m set summarised = true where m.id = any (p_summarised) and m.entity_id = any (v_id);
        insert into entity_vector (entity_id, embedding)
        select t.id, t.embedding from unnest(p_id, p_vector) as t (id, embedding) where t.id = any (v_id) order by t.id
        on conflict (entity_id) do update set embedding = excluded.embedding;
    else
        update relation r
        set tokens = t.tokens, summary = coalesce(t.summary, r.summary),
            description = coalesce(t.summary, r.description)
        from unnest(p_id, p_tokens, p_summary) as t (id, tokens, summary) where r.id = t.id and r.id = any (v_id);
        update fact f set summarised = true where f.id = any (p_summarised) and f.relation_id = any (v_id);
        insert into relation_vector (relation_id, embedding)
        select t.id, t.embedding from unnest(p_id, p_vector) as t (id, embedding) where t.id = any (v_id) order by t.id
        on conflict (relation_id) do update set embedding = excluded.embedding;
    end if;
    return coalesce(cardinality(v_id), 0);
end $f$;
comment on function finish_stale(text, text, bigint[], bigint[], uuid[], integer[], halfvec[], text[], bigint[]) is
    'Stores token counts, vectors and summaries of refreshed entities or relations unless they changed meanwhile; '
    'returns how many';
