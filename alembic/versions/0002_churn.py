"""What keeps a workspace fast whose texts change: answers found by purpose, vectors vacuumed early."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from alembic.util import CommandError

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

VECTORS = ("chunk_vector", "fact_vector", "entity_vector", "relation_vector")


def upgrade() -> None:
    """As 0001. What is dead in an index of vectors costs every search: a fiftieth, not a fifth, is let lie."""
    op.create_index(
        "llm_cache_purpose_idx",
        "llm_cache",
        ["purpose"],
        postgresql_where=sa.text("purpose in ('answer', 'keywords', 'evaluate')"),
    )
    for table in VECTORS:
        op.execute(f"alter table {table} set (autovacuum_vacuum_scale_factor = .02)")


def downgrade() -> None:
    """Refused."""
    raise CommandError("pgrag does not downgrade data: restore a backup made before the upgrade")
