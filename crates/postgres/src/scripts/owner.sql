-- Whose the schema is, before anything in it is used. A trigger, a function, an operator or a type that another role made there would be used
-- with the rights of the role that executes this, now or by a verb later. So everything there belongs to that role, and nobody else may
-- add anything. Nothing of the schema is executed here, not even what is the role's own: a superuser that acts as this role (`SET role` of a
-- database, which its owner may say) would lend its rights to it. And the path names no schema that others write to.
DO $$
DECLARE
    home oid;
    installed integer;
    o record;
BEGIN
    SELECT n.oid INTO home FROM pg_namespace n WHERE n.nspname = 'leasehold';
    IF NOT FOUND THEN
        BEGIN
            CREATE SCHEMA leasehold;
            SELECT n.oid INTO home FROM pg_namespace n WHERE n.nspname = 'leasehold';
            -- Default privileges may have opened it.
            FOR o IN SELECT DISTINCT a.grantee FROM pg_namespace n, aclexplode(n.nspacl) a
                WHERE n.oid = home AND a.grantee <> n.nspowner AND (a.grantee = 0 OR a.privilege_type = 'CREATE')
            LOOP
                EXECUTE format('REVOKE ALL ON SCHEMA leasehold FROM %s CASCADE',
                    CASE WHEN o.grantee = 0 THEN 'PUBLIC' ELSE quote_ident(pg_get_userbyid(o.grantee)) END);
            END LOOP;
        EXCEPTION WHEN unique_violation OR duplicate_schema THEN
            -- Somebody else has made it meanwhile.
            SELECT n.oid INTO home FROM pg_namespace n WHERE n.nspname = 'leasehold';
        END;
    END IF;

    SELECT pg_get_userbyid(n.nspowner) AS name, EXISTS (
            SELECT FROM pg_depend d WHERE d.refclassid = 'pg_namespace'::regclass AND d.refobjid = n.oid
        ) AS is_used INTO o FROM pg_namespace n WHERE n.oid = home;
    IF o.name <> current_user THEN
        RAISE EXCEPTION USING ERRCODE = 'LH002', MESSAGE = format(
            'the schema leasehold belongs to the role %I, and this was executed by %I, with whose rights %1$I could have code executed; nothing was changed: ',
            o.name, current_user
        ) || CASE WHEN o.is_used OR current_setting('is_superuser') = 'on'
            THEN format('log in as %I to execute it, or, if nobody needs what is there, DROP SCHEMA leasehold CASCADE first', o.name)
            ELSE format('ALTER SCHEMA leasehold OWNER TO %I', current_user)
        END;
    END IF;
    -- Only the owner can do this, so nobody else can keep him from it: one migration at a time, and no DROP SCHEMA meanwhile.
    EXECUTE format('COMMENT ON SCHEMA leasehold IS %L', obj_description(home, 'pg_namespace'));

    SELECT CASE WHEN a.grantee = 0 THEN 'PUBLIC' ELSE quote_ident(pg_get_userbyid(a.grantee)) END AS role INTO o
        FROM pg_namespace n, aclexplode(n.nspacl) a WHERE n.oid = home AND a.privilege_type = 'CREATE' AND a.grantee <> n.nspowner LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION USING ERRCODE = 'LH002', MESSAGE = format(
            '%s may create objects in the schema leasehold, which its functions would use with the rights of %I; nothing was changed: REVOKE CREATE ON SCHEMA leasehold FROM %1$s',
            o.role, current_user
        );
    END IF;
    -- Whoever may create extensions may name this schema for one, without rights in it. What is in those that the server trusts is a superuser's,
    -- and is in nobody's way: functions of the store find nothing by a path.
    SELECT t.kind, t.name, pg_get_userbyid(t.owner) AS role INTO o FROM (
        SELECT CASE c.relkind WHEN 'S' THEN 'SEQUENCE' WHEN 'v' THEN 'VIEW' WHEN 'm' THEN 'MATERIALIZED VIEW' WHEN 'f' THEN 'FOREIGN TABLE' ELSE 'TABLE' END,
            c.oid::regclass::text, c.relowner, c.tableoid, c.oid FROM pg_class c WHERE c.relnamespace = home AND c.relkind NOT IN ('i', 'I', 'c')
        UNION ALL SELECT 'TYPE', p.oid::regtype::text, p.typowner, p.tableoid, p.oid FROM pg_type p WHERE p.typnamespace = home
            AND NOT EXISTS (SELECT FROM pg_type e WHERE e.typarray = p.oid) AND NOT EXISTS (SELECT FROM pg_class c WHERE c.oid = p.typrelid AND c.relkind <> 'c')
        UNION ALL SELECT 'ROUTINE', p.oid::regprocedure::text, p.proowner, p.tableoid, p.oid FROM pg_proc p WHERE p.pronamespace = home
        UNION ALL SELECT 'OPERATOR', p.oid::regoperator::text, p.oprowner, p.tableoid, p.oid FROM pg_operator p WHERE p.oprnamespace = home
        UNION ALL SELECT 'OPERATOR CLASS', format('leasehold.%I', p.opcname), p.opcowner, p.tableoid, p.oid FROM pg_opclass p WHERE p.opcnamespace = home
        UNION ALL SELECT 'OPERATOR FAMILY', format('leasehold.%I', p.opfname), p.opfowner, p.tableoid, p.oid FROM pg_opfamily p WHERE p.opfnamespace = home
        UNION ALL SELECT 'COLLATION', format('leasehold.%I', p.collname), p.collowner, p.tableoid, p.oid FROM pg_collation p WHERE p.collnamespace = home
        UNION ALL SELECT 'CONVERSION', format('leasehold.%I', p.conname), p.conowner, p.tableoid, p.oid FROM pg_conversion p WHERE p.connamespace = home
        UNION ALL SELECT 'STATISTICS', format('leasehold.%I', p.stxname), p.stxowner, p.tableoid, p.oid FROM pg_statistic_ext p WHERE p.stxnamespace = home
        UNION ALL SELECT 'TEXT SEARCH CONFIGURATION', format('leasehold.%I', p.cfgname), p.cfgowner, p.tableoid, p.oid FROM pg_ts_config p WHERE p.cfgnamespace = home
        UNION ALL SELECT 'TEXT SEARCH DICTIONARY', format('leasehold.%I', p.dictname), p.dictowner, p.tableoid, p.oid FROM pg_ts_dict p WHERE p.dictnamespace = home
    ) t(kind, name, owner, catalog, oid) WHERE pg_get_userbyid(t.owner) <> current_user AND NOT (
        EXISTS (SELECT FROM pg_depend d WHERE d.classid = t.catalog AND d.objid = t.oid AND d.deptype = 'e')
        AND EXISTS (SELECT FROM pg_roles r WHERE r.oid = t.owner AND r.rolsuper)
    ) LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION USING ERRCODE = 'LH002', MESSAGE = format(
            'in the schema leasehold of the role %I, %s belongs to the role %I, who could have code executed with the rights of %1$I; nothing was changed: DROP %4$s %2$s',
            current_user, o.name, o.role, o.kind
        );
    END IF;

    SELECT coalesce(substring(p.prosrc, '[0-9]{1,9}')::integer, 0) INTO installed
        FROM pg_proc p WHERE p.pronamespace = home AND p.proname = 'revision' AND p.pronargs = 0;
    IF FOUND THEN
        IF installed > $REVISION THEN
            RAISE EXCEPTION USING ERRCODE = 'LH003', MESSAGE = format(
                'the schema leasehold has a later version of the functions, revision %s, and this is $REVISION; nothing was changed', installed
            );
        END IF;
    ELSE
        SELECT d.classid::regclass::text AS catalog, d.objid INTO o FROM pg_depend d
            WHERE d.refclassid = 'pg_namespace'::regclass AND d.refobjid = home ORDER BY d.classid, d.objid LIMIT 1;
        IF FOUND THEN
            SELECT i.type || ' ' || i.identity AS name INTO o FROM pg_identify_object(o.catalog::regclass, o.objid, 0) i;
            RAISE EXCEPTION USING ERRCODE = 'LH002', MESSAGE = format(
                'the schema leasehold has other things than locks (%s), and locks have a schema of their own; nothing was changed: name another one', o.name
            );
        END IF;
    END IF;

    -- The lock keeps whoever may make triggers from it until this is over. Verbs do not wait for it, nor it for a transaction under `held`.
    FOR o IN SELECT c.oid, c.relname AS name, c.relkind AS kind FROM pg_class c
        WHERE c.relnamespace = home AND c.relname IN ('completion', 'lines', 'meta', 'observer', 'place') ORDER BY c.relname
    LOOP
        IF o.kind <> 'r' THEN
            RAISE EXCEPTION USING ERRCODE = 'LH002', MESSAGE = format('leasehold.%I is no table; nothing was changed', o.name);
        END IF;
        EXECUTE format('LOCK TABLE ONLY leasehold.%I IN ROW EXCLUSIVE MODE', o.name);
    END LOOP;
    -- A former owner of a table may have left there what is executed with the rights of the next one, or holds that are another table's rows. Nothing is
    -- allowed but what `tables.sql` and `columns.sql` make.
    SELECT t.what, c.relname AS name, replace(t.remedy, '{table}', format('leasehold.%I', c.relname)) AS remedy INTO o FROM (
        SELECT g.tgrelid, format('TRIGGER %I', g.tgname), format('DROP TRIGGER %I ON {table}', g.tgname) FROM pg_trigger g WHERE NOT g.tgisinternal
        UNION ALL SELECT r.ev_class, format('RULE %I', r.rulename), format('DROP RULE %I ON {table}', r.rulename) FROM pg_rewrite r
        UNION ALL SELECT p.polrelid, format('POLICY %I', p.polname), format('DROP POLICY %I ON {table}', p.polname) FROM pg_policy p
        UNION ALL SELECT d.adrelid, format('DEFAULT of %I', a.attname), format('ALTER TABLE {table} ALTER %I DROP DEFAULT', a.attname)
            FROM pg_attrdef d JOIN pg_attribute a ON a.attrelid = d.adrelid AND a.attnum = d.adnum
            WHERE pg_get_expr(d.adbin, d.adrelid) NOT IN ('true', 'false', '0', '''-infinity''::timestamp with time zone')
        UNION ALL SELECT c.conrelid, format('CHECK %I', c.conname), format('ALTER TABLE {table} DROP CONSTRAINT %I', c.conname)
            FROM pg_constraint c WHERE c.contype = 'c' AND pg_get_constraintdef(c.oid) <> 'CHECK (one)'
        UNION ALL SELECT i.indrelid, format('INDEX %s', i.indexrelid::regclass), format('DROP INDEX %s', i.indexrelid::regclass)
            FROM pg_index i WHERE i.indexprs IS NOT NULL OR i.indpred IS NOT NULL
                OR EXISTS (SELECT FROM pg_opclass k WHERE k.oid = ANY (i.indclass) AND k.opcnamespace <> 'pg_catalog'::regnamespace)
        UNION ALL SELECT a.attrelid, format('column %I of the type %s', a.attname, a.atttypid::regtype), format('ALTER TABLE {table} DROP COLUMN %I', a.attname)
            FROM pg_attribute a JOIN pg_type y ON y.oid = a.atttypid WHERE a.attnum > 0 AND NOT a.attisdropped AND y.typnamespace <> 'pg_catalog'::regnamespace
        UNION ALL SELECT s.stxrelid, format('STATISTICS %I', s.stxname), format('DROP STATISTICS %s.%I', s.stxnamespace::regnamespace, s.stxname)
            FROM pg_statistic_ext s WHERE to_jsonb(s) ->> 'stxexprs' IS NOT NULL
        UNION ALL SELECT i.inhparent, format('child %s', i.inhrelid::regclass), format('ALTER TABLE %s NO INHERIT {table}', i.inhrelid::regclass) FROM pg_inherits i
        UNION ALL SELECT i.inhrelid, format('parent %s', i.inhparent::regclass), format('ALTER TABLE {table} NO INHERIT %s', i.inhparent::regclass) FROM pg_inherits i
    ) t(relation, what, remedy) JOIN pg_class c ON c.oid = t.relation
        WHERE c.relnamespace = home AND c.relname IN ('completion', 'lines', 'meta', 'observer', 'place') LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION USING ERRCODE = 'LH002', MESSAGE = format(
            'the table leasehold.%I has a %s, which is executed with the rights of %I; nothing was changed: %s',
            o.name, o.what, current_user, o.remedy
        );
    END IF;
    SELECT c.conname AS name, c.conrelid::regclass::text AS relation INTO o FROM pg_constraint c JOIN pg_class r ON r.oid = c.confrelid
        WHERE c.contype = 'f' AND r.relnamespace = home AND r.relname IN ('completion', 'lines', 'meta', 'observer', 'place') LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION USING ERRCODE = 'LH002', MESSAGE = format(
            'the table %s refers to a table of leasehold, which it keeps from being changed; nothing was changed: ALTER TABLE %1$s DROP CONSTRAINT %I',
            o.relation, o.name
        );
    END IF;
END $$;

