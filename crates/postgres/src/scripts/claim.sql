-- Takes or keeps a place, in one step. Answers `granted`; `waiting` and, to one that does not queue, `busy`, with the first holder, how many
-- wait beside this claim, how far ahead the first of them is, and in how many milliseconds to ask again; `differ` if the line has another
-- number of permits; `pinned` if a user's transaction keeps its own hold, which has ended or is to become shared.
CREATE OR REPLACE FUNCTION leasehold.claim_1(
    p_name text, p_claim uuid, p_mode smallint, p_n bigint, p_of bigint, p_turns integer, p_queue boolean,
    p_ttl bigint, p_label bytea, p_sent bigint, p_client text, p_patience integer, p_floor bigint,
    OUT what text, OUT a_seq bigint, OUT a_token bigint, OUT a_turns integer, OUT a_sent bigint, OUT a_ttl bigint,
    OUT who_label bytea, OUT who_token bigint, OUT who_for bigint, OUT waiters integer, OUT ahead bigint, OUT nap bigint, OUT waited bigint,
    OUT theirs bigint, OUT channels text[], OUT payloads text[]
) LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET plan_cache_mode = force_generic_plan SET jit = off SET row_security = off AS $$
DECLARE
    l leasehold.lines;
    p leasehold.place;
    s record;
    ms CONSTANT interval := interval '1 millisecond';
    -- When the line was locked, by which others are judged, and when the claim's own place was.
    now timestamptz;
    own timestamptz;
    changed boolean;
    to_channels text[];
    to_payloads text[];
BEGIN
    IF (leasehold.enters_1(p_patience) AND leasehold.fits_1(p_name, p_client, p_turns, p_ttl, p_label, p_floor) AND p_mode BETWEEN 0 AND 2 AND p_n BETWEEN 1 AND p_of AND p_of <= 4294967295) IS NOT TRUE THEN
        PERFORM leasehold.refuse_1('claim_1'::text);
    END IF;
    -- The short way: nobody has or wants it, and it has been had, so its token is above the floor. Where this waits for the row, the condition is asked anew of what it is then, and so is the clock.
    UPDATE leasehold.lines t SET seq = t.seq + 1, head = t.seq + 1, size = 1, used = clock_timestamp(),
        token = leasehold.next_1(t.token, p_floor, clock_timestamp()) + p_turns - 1
        WHERE t.name = p_name AND t.size = 0 AND t.token > 0
        RETURNING t.seq, t.token - p_turns + 1, t.used INTO a_seq, a_token, now;
    IF FOUND THEN
        INSERT INTO leasehold.place AS t (name, seq, claim, mode, n, of, turns, token, client, label, since, ttl, until, sent, said) VALUES (
            p_name, a_seq, p_claim, p_mode, p_n, p_of, p_turns, a_token, p_client, p_label, now, p_ttl, now + p_ttl * ms, p_sent, p_sent
        ) RETURNING 'granted', t.turns, t.sent, t.ttl, '{}'::text[], '{}'::text[], EXISTS (SELECT FROM leasehold.observer o WHERE o.name = p_name)
            INTO what, a_turns, a_sent, a_ttl, channels, payloads, changed;
        IF changed THEN
            SELECT r.channels, r.payloads INTO channels, payloads FROM leasehold.notify_observers_1(p_name, channels, payloads) r;
        END IF;
        RETURN;
    END IF;
    channels := '{}'; payloads := '{}'; to_channels := '{}'; to_payloads := '{}'; changed := false;

    IF NOT p_queue THEN
        -- A live holder at the head is seen without a lock, and nothing is written, unless the claim has a place already.
        SELECT * INTO l FROM leasehold.lines t WHERE t.name = p_name;
        SELECT * INTO p FROM leasehold.place t WHERE t.name = p_name AND t.seq >= l.head ORDER BY t.seq LIMIT 1;
        now := clock_timestamp();
        IF FOUND AND p.token IS NOT NULL AND p.until > now AND p.until <= now + p.ttl * ms AND (p_mode = 0 OR p.mode <> p_mode) THEN
            IF NOT EXISTS (SELECT FROM leasehold.place t WHERE t.claim = p_claim) AND NOT (p_mode = 2 AND EXISTS (
                SELECT FROM leasehold.place t WHERE t.name = p_name AND t.seq > p.seq AND t.mode = 2 AND t.of <> p_of
            )) THEN
                what := 'busy'; who_label := p.label; who_token := p.token;
                who_for := extract(epoch FROM now - p.since) * 1000;
                waiters := l.size - 1;
                IF p.mode <> 0 THEN
                    SELECT l.size - count(*) INTO waiters FROM leasehold.place t
                        WHERE t.name = p_name AND t.seq >= p.seq AND t.token IS NOT NULL;
                END IF;
                RETURN;
            END IF;
        END IF;
    END IF;

    l := leasehold.lock_1(p_name, true);
    now := clock_timestamp();
    s := leasehold.settle_1(p_name, p_claim, now, l.head, l.size, l.token);
    -- No renewal is at it from here on: one that is, and that may give it a later end, is waited for.
    SELECT * INTO p FROM leasehold.place t WHERE t.claim = p_claim FOR NO KEY UPDATE;
    own := clock_timestamp();
    IF FOUND AND p.name <> p_name THEN
        RAISE EXCEPTION 'one claim has two names' USING ERRCODE = '23505';
    ELSIF FOUND AND p.until <= own THEN
        IF leasehold.remove_1(p_name, p.seq) THEN
            s.l_size := s.l_size - 1;
            p := NULL;
            changed := s.changed; to_channels := s.channels; to_payloads := s.payloads;
            s := leasehold.settle_1(p_name, p_claim, now, s.l_head, s.l_size, s.l_token);
        ELSE
            what := 'pinned';
        END IF;
    ELSIF FOUND AND p.token IS NOT NULL AND p.mode = 0 AND p_mode = 1 AND NOT p.parted THEN
        -- Readers would begin before the transaction that keeps it has committed. Only such ones can have the row now.
        PERFORM 1 FROM leasehold.place t WHERE t.name = p_name AND t.seq = p.seq FOR UPDATE SKIP LOCKED;
        IF NOT FOUND THEN
            what := 'pinned';
        END IF;
    END IF;

    IF what IS NULL AND p.seq IS NOT NULL AND p.parted THEN
        what := 'busy';
    ELSIF what IS NULL AND p.seq IS NOT NULL THEN
        -- An end that is farther away than a lease is a clock's that was ahead.
        IF own + p_ttl * ms >= least(p.until, own + p.ttl * ms) THEN
            p.until := own + p_ttl * ms; p.ttl := p_ttl; p.sent := p_sent;
        END IF;
        IF p_sent >= p.said THEN
            changed := changed OR p.token IS NOT NULL AND p.label <> p_label;
            p.said := p_sent; p.label := p_label; p.client := p_client;
        END IF;
        IF p.token IS NULL AND p_floor > coalesce(p.floor, 0) THEN
            UPDATE leasehold.place t SET floor = p_floor WHERE t.name = p_name AND t.seq = p.seq;
        ELSIF p_floor > p.token THEN
            -- Nobody was granted the lock since an exclusive one was. Others each have tokens of their own.
            p.token := CASE WHEN p.mode = 0 THEN p_floor ELSE greatest(s.l_token + 1, p_floor) END;
            s.l_token := greatest(s.l_token, p.token + p.turns - 1);
            UPDATE leasehold.place t SET token = p.token WHERE t.name = p_name AND t.seq = p.seq;
            changed := true;
        END IF;
        IF p.token IS NOT NULL AND p.mode = 0 AND p_mode = 1 THEN
            p.mode := p_mode; p.n := p_n; p.of := p_of;
            changed := true;
        END IF;
        UPDATE leasehold.place t SET until = p.until, ttl = p.ttl, sent = p.sent, said = p.said, label = p.label, client = p.client,
            mode = p.mode, n = p.n, of = p.of WHERE t.name = p_name AND t.seq = p.seq;
        what := CASE WHEN p.token IS NULL THEN 'waiting' ELSE 'granted' END;
        changed := changed OR s.changed; to_channels := to_channels || s.channels; to_payloads := to_payloads || s.payloads;
        -- Those behind a hold that is shared now, and the end of this one's own lease.
        s := leasehold.settle_1(p_name, p_claim, now, s.l_head, s.l_size, s.l_token);
    ELSIF what IS NULL THEN
        IF p_mode = 2 THEN
            SELECT t.of INTO theirs FROM leasehold.place t
                WHERE t.name = p_name AND t.seq >= s.l_head AND t.mode = 2 AND (t.until > now OR t.token IS NOT NULL)
                ORDER BY t.seq LIMIT 1;
        END IF;
        IF theirs <> p_of THEN
            what := 'differ';
        ELSIF s.waits IS NULL AND (s.kind IS NULL OR s.kind = p_mode AND (
            p_mode = 1 OR p_mode = 2 AND s.taken + p_n <= least(s.room, p_of)
        )) THEN
            what := 'granted';
            p.token := leasehold.next_1(s.l_token, p_floor, now);
            s.l_token := p.token + p_turns - 1;
            changed := true;
        ELSE
            what := CASE WHEN p_queue THEN 'waiting' ELSE 'busy' END;
        END IF;
        IF what IN ('granted', 'waiting') THEN
            l.seq := l.seq + 1;
            p.seq := l.seq; p.turns := p_turns; p.sent := p_sent; p.ttl := p_ttl;
            s.l_size := s.l_size + 1;
            INSERT INTO leasehold.place (name, seq, claim, mode, n, of, turns, token, client, label, since, ttl, until, sent, said, floor) VALUES (
                p_name, p.seq, p_claim, p_mode, p_n, p_of, p_turns, p.token, p_client, p_label, now, p_ttl, now + p_ttl * ms,
                p_sent, p_sent, CASE WHEN p.token IS NULL THEN p_floor END
            );
            IF what = 'waiting' THEN
                s.waits := coalesce(s.waits, p.seq);
            END IF;
        END IF;
    END IF;

    UPDATE leasehold.lines t SET seq = l.seq, head = s.l_head, size = s.l_size, token = s.l_token, used = now WHERE t.name = p_name;
    channels := to_channels || s.channels; payloads := to_payloads || s.payloads;
    IF changed OR s.changed THEN
        SELECT r.channels, r.payloads INTO channels, payloads FROM leasehold.notify_observers_1(p_name, channels, payloads) r;
    END IF;
    a_seq := p.seq;
    IF what = 'granted' THEN
        a_token := p.token; a_turns := p.turns; a_sent := p.sent; a_ttl := p.ttl;
    ELSE
        who_label := s.who_label; who_token := s.who_token;
        who_for := extract(epoch FROM now - s.who_since) * 1000;
        waiters := greatest(0, s.l_size - s.holders - CASE WHEN what = 'waiting' THEN 1 ELSE 0 END);
        ahead := greatest(0, p.seq - coalesce(s.waits, p.seq));
        waited := extract(epoch FROM now - coalesce(p.since, now)) * 1000;
        nap := ceil(extract(epoch FROM s.ends - now) * 1000) + least(1000, ahead * 20);
    END IF;
END $$;

-- Takes all of these names, exclusively, or changes nothing. Answers a row for each in the order of the question, all `granted`; or one row,
-- `busy`, with the number of the first that is not free.
CREATE OR REPLACE FUNCTION leasehold.claim_all_1(
    p_names text[], p_claims uuid[], p_turns integer, p_ttl bigint, p_label bytea, p_sent bigint, p_client text, p_patience integer,
    p_floors bigint[]
) RETURNS TABLE (
    what text, nr integer, a_seq bigint, a_token bigint, a_turns integer, a_sent bigint, a_ttl bigint,
    who_label bytea, who_token bigint, who_for bigint, waiters integer, channels text[], payloads text[]
) LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET plan_cache_mode = force_generic_plan SET jit = off SET row_security = off AS $$
DECLARE
    l leasehold.lines;
    p leasehold.place;
    s record;
    i integer;
    ms CONSTANT interval := '1 millisecond';
    now timestamptz;
    none CONSTANT text[] := '{}';
    to_channels text[] := '{}';
    to_payloads text[] := '{}';
BEGIN
    IF (leasehold.enters_1(p_patience) AND cardinality(p_names) = (SELECT count(DISTINCT a.name) FROM unnest(p_names) a(name)) AND cardinality(p_names) <= 1000
        AND (SELECT bool_and(leasehold.fits_1(a.name, p_client, p_turns, p_ttl, p_label, a.floor)) FROM unnest(p_names, p_floors) a(name, floor))) IS NOT TRUE THEN
        PERFORM leasehold.refuse_1('claim_all_1'::text);
    END IF;
    -- Without a lock at first: who is refused writes nothing.
    now := clock_timestamp();
    FOR i IN SELECT a.nr::integer FROM unnest(p_names) WITH ORDINALITY a(name, nr) LOOP
        SELECT * INTO l FROM leasehold.lines t WHERE t.name = p_names[i];
        SELECT * INTO p FROM leasehold.place t WHERE t.name = p_names[i] AND t.seq >= l.head ORDER BY t.seq LIMIT 1;
        IF FOUND AND p.claim <> p_claims[i] AND p.token IS NOT NULL AND p.until > now AND p.until <= now + p.ttl * ms THEN
            RETURN QUERY SELECT 'busy', i, NULL::bigint, NULL::bigint, NULL::integer, NULL::bigint, NULL::bigint,
                p.label, p.token, (extract(epoch FROM now - p.since) * 1000)::bigint, NULL::integer, none, none;
            RETURN;
        END IF;
    END LOOP;
    FOR i IN SELECT a.nr::integer FROM unnest(p_names) WITH ORDINALITY a(name, nr) ORDER BY a.name COLLATE "C" LOOP
        PERFORM leasehold.lock_1(p_names[i], true);
    END LOOP;
    now := clock_timestamp();
    FOR i IN 1 .. cardinality(p_names) LOOP
        SELECT * INTO l FROM leasehold.lines t WHERE t.name = p_names[i];
        IF l.token = 0 THEN
            l.token := coalesce((SELECT t.floor FROM leasehold.meta t WHERE t.one), 0);
        END IF;
        s := leasehold.settle_1(p_names[i], p_claims[i], now, l.head, l.size, l.token);
        UPDATE leasehold.lines t SET head = s.l_head, size = s.l_size, token = s.l_token, used = now WHERE t.name = p_names[i];
        to_channels := to_channels || s.channels; to_payloads := to_payloads || s.payloads;
        IF s.changed THEN
            SELECT r.channels, r.payloads INTO to_channels, to_payloads FROM leasehold.notify_observers_1(p_names[i], to_channels, to_payloads) r;
        END IF;
        IF s.holders > 0 OR s.waits IS NOT NULL THEN
            SELECT * INTO p FROM leasehold.place t WHERE t.claim = p_claims[i] AND t.name || ''::text = p_names[i];
            IF NOT FOUND OR p.token IS NULL OR p.until <= now OR p.parted THEN
                RETURN QUERY SELECT 'busy', i, NULL::bigint, NULL::bigint, NULL::integer, NULL::bigint, NULL::bigint,
                    s.who_label, s.who_token, (extract(epoch FROM now - s.who_since) * 1000)::bigint,
                    greatest(0, s.l_size - s.holders), to_channels, to_payloads;
                RETURN;
            END IF;
        END IF;
    END LOOP;
    FOR i IN 1 .. cardinality(p_names) LOOP
        SELECT * INTO p FROM leasehold.place t WHERE t.claim = p_claims[i] FOR NO KEY UPDATE;
        IF FOUND AND p.name <> p_names[i] THEN
            RAISE EXCEPTION 'one claim has two names' USING ERRCODE = '23505';
        ELSIF FOUND THEN
            now := clock_timestamp();
            IF now + p_ttl * ms >= least(p.until, now + p.ttl * ms) THEN
                p.until := now + p_ttl * ms; p.ttl := p_ttl; p.sent := p_sent;
                UPDATE leasehold.place t SET until = p.until, ttl = p.ttl, sent = p.sent WHERE t.name = p.name AND t.seq = p.seq;
            END IF;
            IF p_floors[i] > p.token THEN
                p.token := p_floors[i];
                UPDATE leasehold.place t SET token = p.token WHERE t.name = p.name AND t.seq = p.seq;
                UPDATE leasehold.lines t SET token = greatest(t.token, p.token + p.turns - 1) WHERE t.name = p.name;
                SELECT r.channels, r.payloads INTO to_channels, to_payloads FROM leasehold.notify_observers_1(p.name, to_channels, to_payloads) r;
            END IF;
        ELSE
            SELECT * INTO l FROM leasehold.lines t WHERE t.name = p_names[i];
            p.seq := l.seq + 1; p.turns := p_turns; p.ttl := p_ttl; p.sent := p_sent;
            p.token := leasehold.next_1(l.token, p_floors[i], now);
            INSERT INTO leasehold.place (name, seq, claim, mode, n, of, turns, token, client, label, since, ttl, until, sent, said) VALUES (
                p_names[i], p.seq, p_claims[i], 0, 1, 1, p_turns, p.token, p_client, p_label, now, p_ttl, now + p_ttl * ms,
                p_sent, p_sent
            );
            UPDATE leasehold.lines t SET seq = p.seq, size = l.size + 1, token = p.token + p_turns - 1 WHERE t.name = p_names[i];
            SELECT r.channels, r.payloads INTO to_channels, to_payloads FROM leasehold.notify_observers_1(p_names[i], to_channels, to_payloads) r;
        END IF;
        what := 'granted'; nr := i; a_seq := p.seq; a_token := p.token; a_turns := p.turns; a_sent := p.sent; a_ttl := p.ttl;
        channels := none; payloads := none;
        IF i = cardinality(p_names) THEN
            channels := to_channels; payloads := to_payloads;
        END IF;
        RETURN NEXT;
    END LOOP;
END $$;
