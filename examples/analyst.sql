-- What an analyst may ask of a workspace, in psql: \i examples/analyst.sql (default workspace; others live in pgrag_<name>).

-- the best connected things
select name, type, degree, mentions from pgrag.entities order by degree desc, mentions desc, name limit 10;

-- how two layers hang together, heaviest first
select source, target, array_to_string(keywords, ', ') as keywords, weight from pgrag.relations order by weight desc, source limit 10;

-- every fact about a thing, with the place in the document that states it
select fact, uri, start_char, end_char from pgrag.sources
where entities && array(select name from pgrag.entities order by degree desc, mentions desc, name limit 1) order by uri, start_char limit 10;

-- the citation is exact: the passage is the document's own text
select count(*) as facts, count(*) filter (where position(s.passage in d.body) > 0) as cited
from pgrag.sources s join pgrag.document d on d.id = s.document_id;

-- documents that waited, failed or came out empty
select status, count(*) from pgrag.documents group by status order by status;

-- what models cost so far
select * from pgrag.usage order by cost desc;

-- two steps from a thing, along relations
with recursive walk (entity_id, name, depth) as (
    (select id, name, 0 from pgrag.entities order by degree desc, mentions desc, name limit 1)
    union
    select a.other_id, e.name, w.depth + 1
    from walk w join pgrag.adjacency a on a.entity_id = w.entity_id join pgrag.entity e on e.id = a.other_id
    where w.depth < 2
)
select depth, string_agg(distinct name, ', ' order by name) as entities from walk group by depth order by depth;

-- the search itself, by names and words; with vectors: pgrag query
select layer, rank, name, target, left(body, 60) as text, score, why from pgrag.retrieve(p_words => '{incident}', p_keys => '{incident}') limit 10;
