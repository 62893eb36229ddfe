-- Passages that questions for an evaluation are drafted from.

-- draw_passages: draws by digest, so that the same texts and seed give the same ones. One passage for single_fact and
-- null, every document in turn, those that state something first; two of different documents that name one entity for
-- multi_hop (up to three pairs an entity), three to five for aggregation: an entity that more than 20 passages name
-- says little about what they share; for thematic the sources of the strongest relations of a well connected entity.
-- Equal texts count once. Passages of a draw come in an order of their own, documents in turn.
create or replace function draw_passages(p_kind text, p_seed text, p_limit integer)
returns table (draw bigint, subject text, chunk_id bigint, uri text, ordinal integer, headings text[], body text)
language sql stable
set search_path from current
as $f$
    with lone as (
        select t.id, row_number() over (order by t.turn, t.lot, t.id) as draw
        from (
            select c.id, md5(p_seed || c.sha256) as lot,
                   row_number() over (
                       partition by c.document_id
                       order by exists (select from fact f
                                        where f.chunk_id = c.id) desc, md5(p_seed || c.sha256), c.ordinal
                   ) as turn
            from chunk c where p_kind in ('single_fact', 'null')
        ) t
        order by t.turn, t.lot, t.id limit p_limit
    ), subjects as (
        (
            select e.id, e.name from entity e
            where p_kind in ('multi_hop', 'aggregation') and e.degree > 0 and e.mentions between 2 and 20
            order by md5(p_seed || e.name), e.name limit p_limit * 5
        )
        union all
        (
            select e.id, e.name from entity e where p_kind = 'thematic' and e.degree > 1
            order by e.degree desc, md5(p_seed || e.name), e.name limit greatest(p_limit * 3, 30)
        )
    ), links as (
        select s.id as entity_id, m.chunk_id from subjects s join mention m on m.entity_id = s.id
        where p_kind <> 'thematic'
        union
        select s.id, f.chunk_id
        from subjects s
        cross join lateral (
            select a.relation_id from adjacency a where a.entity_id = s.id order by a.weight desc, a.relation_id
            limit 12
        ) a
        cross join lateral (
            select x.chunk_id from fact x where x.relation_id = a.relation_id and x.chunk_id is not null
            order by x.strength desc, x.id limit 3
        ) f
        where p_kind = 'thematic'
    ), texts as (
        select distinct on (l.entity_id, c.sha256) l.entity_id, c.id, c.document_id, md5(p_seed || c.sha256) as lot
        from links l join chunk c on c.id = l.chunk_id
        order by l.entity_id, c.sha256, c.id
    ), turns as (
        select t.*, row_number() over (partition by t.entity_id, t.document_id order by t.lot) as turn from texts t
    ), places as (
        select t.entity_id, t.id, row_number() over (partition by t.entity_id order by t.turn, t.lot) as place
        from turns t where p_kind <> 'multi_hop' or t.turn = 1
    ), sizes as (
        select p.entity_id, count(*) as size from places p group by p.entity_id
    ), sets as (
        select s.id, s.name, g.part, row_number() over (order by g.part, md5(p_seed || s.name), s.name) as draw
        from subjects s join sizes z on z.entity_id = s.id
        cross join lateral generate_series(0, case p_kind when 'multi_hop' then least(z.size / 2, 3) - 1
                                           else 0 end) as g (part)
        where z.size >= case p_kind when 'aggregation' then 3 else 2 end
        order by draw limit p_limit
    ), drawn as (
        select l.draw, '' as subject, l.id as chunk_id, 1 as place from lone l
        union all
        select s.draw, s.name, p.id, p.place
        from sets s
        join places p on p.entity_id = s.id and p.place > 2 * s.part and p.place <= 2 * s.part + case p_kind
        when 'multi_hop' then 2 else 5 end
    )
    select w.draw, w.subject, c.id, d.uri, c.ordinal, c.headings, c.body
    from drawn w join chunk c on c.id = w.chunk_id join document d on d.id = c.document_id
    order by w.draw, w.place
$f$;
comment on function draw_passages(text, text, integer) is
    'Passages to draft questions of a kind from: p_limit draws of one to five passages, the same for the same texts '
    'and p_seed';
