"""${message}"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from alembic.util import CommandError
${imports if imports else ""}
revision = ${repr(up_revision)}
down_revision = ${repr(down_revision)}
branch_labels = ${repr(branch_labels)}
depends_on = ${repr(depends_on)}


def upgrade() -> None:
    """Runs with search_path = the workspace's schema, then the extensions'. Imports nothing of pgrag, reads no sql/."""
    ${upgrades if upgrades else "pass"}


def downgrade() -> None:
    """Refused."""
    raise CommandError("pgrag does not downgrade data: restore a backup made before the upgrade")
