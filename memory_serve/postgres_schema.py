"""The tables of a memory in PostgreSQL, version by version. They hold what those of the SQLite file hold.

Texts are compared byte by byte (collation C), so that both stores sort alike. Vectors stay in the row, which keeps
whoever reads all of them from looking each up elsewhere. Ids of runs and keys of credits may be longer than an index
takes; they are found by their digest.
"""

from __future__ import annotations

MIGRATIONS: tuple[tuple[str, ...], ...] = (
    (
        "CREATE TABLE mia_schema (version integer NOT NULL)",
        "CREATE TABLE facts (name text PRIMARY KEY, value text NOT NULL)",
        """CREATE TABLE memories (
            id text COLLATE "C" PRIMARY KEY,
            place bigint GENERATED ALWAYS AS IDENTITY,
            namespace text COLLATE "C" NOT NULL,
            modality text COLLATE "C" NOT NULL,
            category text COLLATE "C" NOT NULL,
            outcome text COLLATE "C" NOT NULL CHECK (outcome IN ('correct', 'incorrect', 'unjudged')),
            uses bigint NOT NULL,
            successes bigint NOT NULL,
            created text COLLATE "C" NOT NULL,
            source_id text COLLATE "C" NOT NULL,
            trajectory_id text COLLATE "C" NOT NULL,
            revision bigint NOT NULL,
            trust text COLLATE "C" NOT NULL CHECK (trust IN ('reference', 'panel', 'model', 'user', 'unjudged')),
            absorbed text NOT NULL,
            win_rate double precision,
            encoder text COLLATE "C" NOT NULL,
            cell bytea NOT NULL,
            vector vector NOT NULL,
            caption_vector vector,
            question text NOT NULL,
            caption text NOT NULL,
            workflow text NOT NULL,
            plan text NOT NULL,
            provenance text NOT NULL,
            merged_from text NOT NULL,
            original text NOT NULL,
            CHECK (0 <= successes AND successes <= uses)
        )""",
        "ALTER TABLE memories ALTER COLUMN vector SET STORAGE PLAIN",
        "CREATE INDEX memories_near ON memories (namespace, modality, category, cell)",
        "CREATE INDEX memories_page ON memories (namespace, created, place)",
        "CREATE INDEX memories_export ON memories (namespace, id)",
        """CREATE TABLE runs (
            namespace text COLLATE "C" NOT NULL,
            digest bytea NOT NULL,
            trajectory_id text NOT NULL,
            memory_id text COLLATE "C" NOT NULL REFERENCES memories (id) ON DELETE CASCADE,
            outcome text NOT NULL,
            PRIMARY KEY (namespace, digest)
        )""",
        "CREATE INDEX runs_memory ON runs (memory_id)",
        """CREATE TABLE credited (
            namespace text COLLATE "C" NOT NULL, digest bytea NOT NULL, PRIMARY KEY (namespace, digest)
        )""",
        """CREATE TABLE changes (
            number bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
            at text NOT NULL,
            actor text NOT NULL,
            namespace text COLLATE "C" NOT NULL,
            action text NOT NULL,
            undone bigint
        )""",
        "CREATE INDEX changes_namespace ON changes (namespace, number)",
        """CREATE TABLE images (
            number bigint NOT NULL REFERENCES changes (number) ON DELETE CASCADE,
            memory_id text COLLATE "C" NOT NULL,
            before text,
            after text,
            vector bytea,
            caption_vector bytea,
            PRIMARY KEY (number, memory_id)
        )""",
    ),
    (  # vectors are compared in RAM: no place in a grid, no approximate index
        "DROP INDEX IF EXISTS memories_hnsw",
        "ALTER TABLE memories DROP COLUMN cell",  # and the index on it
        "CREATE INDEX memories_bucket ON memories (namespace, modality, category)",
    ),
)
"""Statements that lead from each schema version to the next; `mia_schema` says how many have been run."""
