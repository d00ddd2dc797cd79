-- Functions are everybody's unless this is said; and default privileges may give tables to others, who could make triggers, which are executed
-- with the owner's rights. What others were granted by name to read stays.
DO $$
DECLARE
    home CONSTANT oid := to_regnamespace('leasehold');
    o record;
BEGIN
    FOR o IN SELECT p.oid::regprocedure::text AS name FROM pg_proc p WHERE p.pronamespace = home AND p.proname IN (
        'protocol', 'revision', 'enters_1', 'fits_1', 'refuse_1', 'lock_1', 'remove_1', 'keeper_1', 'hex_1', 'next_1', 'settle_1', 'notify_observers_1', 'claim_1', 'claim_all_1', 'renew_1',
        'release_1', 'release_after_1', 'evict_1', 'inspect_1', 'list_1', 'observe_1', 'sweep_1', 'mark_1', 'raise_1', 'held',
        'shown_1', 'finish_1', 'once_1', 'complete_1', 'recorded_1', 'completion_1', 'completions_1', 'forget_1', 'done'
    ) LOOP
        EXECUTE format('REVOKE ALL ON FUNCTION %s FROM PUBLIC', o.name);
    END LOOP;
    -- Nobody else has a column of the type of their rows: it would keep them from being given another one.
    FOR o IN SELECT c.relname AS name FROM pg_class c WHERE c.relnamespace = home AND c.relname IN ('completion', 'lines', 'meta', 'observer', 'place') LOOP
        EXECUTE format('REVOKE ALL ON TYPE leasehold.%I FROM PUBLIC', o.name);
    END LOOP;
    FOR o IN SELECT DISTINCT c.relname AS name, a.grantee FROM pg_class c, LATERAL (
            SELECT e.* FROM aclexplode(c.relacl) e
            UNION ALL SELECT e.* FROM pg_attribute t, aclexplode(t.attacl) e WHERE t.attrelid = c.oid
        ) a WHERE c.relnamespace = home AND c.relname IN ('completion', 'lines', 'meta', 'observer', 'place')
            AND a.grantee <> c.relowner AND (a.grantee = 0 OR a.privilege_type IN ('TRIGGER', 'REFERENCES'))
    LOOP
        EXECUTE format('REVOKE %s ON TABLE leasehold.%I FROM %s CASCADE', CASE WHEN o.grantee = 0 THEN 'ALL' ELSE 'TRIGGER, REFERENCES' END,
            o.name, CASE WHEN o.grantee = 0 THEN 'PUBLIC' ELSE quote_ident(pg_get_userbyid(o.grantee)) END);
    END LOOP;
END $$;

