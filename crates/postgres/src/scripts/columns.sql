-- Columns that came after a table was first made. Adding one waits for each transaction under `held`, and all verbs wait behind that. So it
-- is done if one is missing, last, for a moment, and again, and given up if the table is never free.
DO $$
DECLARE
    o record;
BEGIN
    FOR o IN SELECT c.table_name, c.name, c.type FROM (VALUES
            ('place', 'parted', 'boolean NOT NULL DEFAULT false'),
            ('place', 'floor', 'bigint'),
            ('place', 'once', 'numeric(20, 0)')
        ) c(table_name, name, type) WHERE NOT EXISTS (
            SELECT FROM pg_attribute a
            WHERE a.attrelid = to_regclass('leasehold.' || c.table_name) AND a.attname = c.name AND NOT a.attisdropped
        )
    LOOP
        FOR nth IN 1 .. 40 LOOP
            BEGIN
                PERFORM set_config('lock_timeout', '50', true);
                EXECUTE format('ALTER TABLE leasehold.%I ADD COLUMN %I %s', o.table_name, o.name, o.type);
                EXIT;
            EXCEPTION WHEN lock_not_available THEN
                IF nth = 40 THEN
                    RAISE EXCEPTION USING ERRCODE = '55P03', MESSAGE = format(
                        'a transaction has used the table leasehold.%I for too long (held?), and it could not be given the column %I; nothing was changed: execute this again',
                        o.table_name, o.name
                    );
                END IF;
                PERFORM pg_sleep(0.1);
            END;
        END LOOP;
    END LOOP;
END $$;

