-- Completions: work of a name that is done once. A claim with `once_1` is granted only if no completion counts for it: one of its fire or of a
-- later one, whose keep has not passed. Locks ignore them, in the same queue.
-- A hand-over does not look at them: neither the verbs for locks, nor those of earlier versions. So a client begins no work on a hand-over, but on the answer to
-- `once_1`, which looks at the completion in a statement after the one that grants: what was committed before the grant is seen by that.

-- A completion as it is answered.
CREATE OR REPLACE FUNCTION leasehold.shown_1(
    d leasehold.completion, OUT d_token bigint, OUT d_label bytea, OUT d_at bigint, OUT d_left bigint, OUT d_fire text, OUT d_result text, OUT d_cut boolean
) LANGUAGE plpgsql AS $$
BEGIN
    IF d.token < 0 OR d.fire < 0 THEN
        RAISE EXCEPTION 'a completion that this version cannot read' USING ERRCODE = 'XX000';
    END IF;
    d_token := d.token; d_label := d.label; d_fire := trunc(d.fire); d_result := d.result; d_cut := d.cut;
    d_at := floor(extract(epoch FROM d.at) * 1000);
    IF d.until IS NOT NULL THEN
        d_left := greatest(0, ceil(extract(epoch FROM d.until - clock_timestamp()) * 1000));
    END IF;
END $$;

-- Ends the place of this claim, if it has one, and the places of waiters for whom work up to this fire is done: a thousand of them, and whether there are more.
-- They are to ask again. Once none is left, others are served as after a release.
CREATE OR REPLACE FUNCTION leasehold.finish_1(
    p_name text, p_claim uuid, p_fire numeric, OUT what text, OUT more boolean, OUT channels text[], OUT payloads text[]
) LANGUAGE plpgsql AS $$
DECLARE
    l leasehold.lines;
    p leasehold.place;
    s record;
    now pg_catalog.timestamptz;
    changed boolean := false;
    gone bigint;
BEGIN
    what := 'none'; more := false; channels := '{}'; payloads := '{}';
    l := leasehold.lock_1(p_name, false);
    IF l.name IS NULL THEN
        RETURN;
    END IF;
    now := clock_timestamp();
    SELECT * INTO p FROM leasehold.place t WHERE t.claim = p_claim AND t.name || ''::pg_catalog.text = p_name;
    IF FOUND AND leasehold.remove_1(p_name, p.seq) THEN
        what := 'done';
        l.size := l.size - 1;
        changed := p.token IS NOT NULL;
    ELSIF FOUND THEN
        what := 'pinned';
    END IF;
    WITH ended AS (
        DELETE FROM leasehold.place t WHERE t.name = p_name AND t.seq = ANY (ARRAY(
            SELECT w.seq FROM leasehold.place w WHERE w.name = p_name AND w.seq >= l.head AND w.token IS NULL AND w.once <= p_fire
            ORDER BY w.seq LIMIT 1000
        )) RETURNING t.seq, t.client, leasehold.hex_1(t.claim) AS id
    ) SELECT count(*), coalesce(array_agg(e.client ORDER BY e.seq) FILTER (WHERE e.client <> ''), '{}'),
            coalesce(array_agg('again ' || e.id ORDER BY e.seq) FILTER (WHERE e.client <> ''), '{}') INTO gone, channels, payloads FROM ended e;
    l.size := l.size - gone;
    more := gone = 1000;
    IF more THEN
        -- The next of them would be granted the lock, only to be told.
        UPDATE leasehold.lines t SET size = l.size, used = now WHERE t.name = p_name;
    ELSE
        s := leasehold.settle_1(p_name, NULL::pg_catalog.uuid, now, l.head, l.size, l.token);
        UPDATE leasehold.lines t SET head = s.l_head, size = s.l_size, token = s.l_token, used = now WHERE t.name = p_name;
        channels := channels || s.channels; payloads := payloads || s.payloads;
        changed := changed OR s.changed;
    END IF;
    IF changed THEN
        SELECT r.channels, r.payloads INTO channels, payloads FROM leasehold.notify_observers_1(p_name, channels, payloads) r;
    END IF;
END $$;

-- As `claim_1`, for work that is done once, of this fire. Answers `done` with the completion if one counts, and then leaves no place.
CREATE OR REPLACE FUNCTION leasehold.once_1(
    p_name text, p_claim uuid, p_fire text, p_queue boolean, p_ttl bigint, p_label bytea, p_sent bigint, p_client text, p_patience integer, p_floor bigint,
    OUT what text, OUT a_seq bigint, OUT a_token bigint, OUT a_turns integer, OUT a_sent bigint, OUT a_ttl bigint,
    OUT who_label bytea, OUT who_token bigint, OUT who_for bigint, OUT waiters integer, OUT ahead bigint, OUT nap bigint, OUT waited bigint,
    OUT theirs bigint, OUT channels text[], OUT payloads text[],
    OUT d_token bigint, OUT d_label bytea, OUT d_at bigint, OUT d_left bigint, OUT d_fire text, OUT d_result text, OUT d_cut boolean
) LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET plan_cache_mode = force_generic_plan SET jit = off SET row_security = off AS $$
DECLARE
    d leasehold.completion;
    mine CONSTANT numeric := trunc(p_fire::numeric);
    to_channels text[] := '{}';
    to_payloads text[] := '{}';
BEGIN
    IF (leasehold.enters_1(p_patience) AND mine BETWEEN 0 AND 18446744073709551615) IS NOT TRUE THEN
        PERFORM leasehold.refuse_1('once_1'::text);
    END IF;
    SELECT * INTO d FROM leasehold.completion t WHERE t.name = p_name AND (t.until > clock_timestamp()) IS NOT FALSE AND (t.fire >= 0 AND t.fire < mine) IS NOT TRUE;
    IF NOT FOUND THEN
        SELECT r.what, r.a_seq, r.a_token, r.a_turns, r.a_sent, r.a_ttl, r.who_label, r.who_token, r.who_for, r.waiters, r.ahead, r.nap, r.waited,
                r.theirs, r.channels, r.payloads
            INTO what, a_seq, a_token, a_turns, a_sent, a_ttl, who_label, who_token, who_for, waiters, ahead, nap, waited, theirs, channels, payloads
            FROM leasehold.claim_1(p_name, p_claim, 0::smallint, 1::bigint, 1::bigint, 1, p_queue, p_ttl, p_label, p_sent, p_client, p_patience, p_floor) r;
        IF what NOT IN ('granted', 'waiting') THEN
            RETURN;
        END IF;
        -- A statement of its own: another one has completed while this one waited for the line, or its transaction has committed since the first look.
        SELECT * INTO d FROM leasehold.completion t WHERE t.name = p_name AND (t.until > clock_timestamp()) IS NOT FALSE AND (t.fire >= 0 AND t.fire < mine) IS NOT TRUE;
        IF NOT FOUND THEN
            UPDATE leasehold.place t SET once = mine WHERE t.claim = p_claim AND t.once IS DISTINCT FROM mine;
            RETURN;
        END IF;
        to_channels := channels; to_payloads := payloads;
    END IF;
    SELECT * INTO d_token, d_label, d_at, d_left, d_fire, d_result, d_cut FROM leasehold.shown_1(d);
    channels := '{}'; payloads := '{}';
    -- Nothing is written, and no lock taken, for one that has no place.
    PERFORM 1 FROM leasehold.place t WHERE t.claim = p_claim;
    IF FOUND THEN
        SELECT r.channels, r.payloads INTO channels, payloads FROM leasehold.finish_1(p_name, p_claim, d.fire) r;
    END IF;
    what := 'done'; channels := to_channels || channels; payloads := to_payloads || payloads;
END $$;

-- Records that the work of this claim, under the hold with this token, is done, and ends the hold. NULL keeps that for ever. Answers `done` with the completion,
-- also to one that asks again, and whether more waiters are to be told; `none` if it does not hold; `pinned` if a user's transaction keeps the
-- hold: it may still fail.
CREATE OR REPLACE FUNCTION leasehold.complete_1(
    p_name text, p_claim uuid, p_token bigint, p_fire text, p_keep bigint, p_result text, p_cut boolean, p_patience integer,
    OUT what text, OUT more boolean, OUT channels text[], OUT payloads text[],
    OUT d_token bigint, OUT d_label bytea, OUT d_at bigint, OUT d_left bigint, OUT d_fire text, OUT d_result text, OUT d_cut boolean
) LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET plan_cache_mode = force_generic_plan SET jit = off SET row_security = off AS $$
DECLARE
    d leasehold.completion;
    p leasehold.place;
    mine CONSTANT numeric := trunc(p_fire::numeric);
    now timestamptz;
BEGIN
    IF (leasehold.enters_1(p_patience) AND octet_length(p_name) BETWEEN 1 AND 2600 AND mine BETWEEN 0 AND 18446744073709551615 AND coalesce(p_keep, 1) BETWEEN 1 AND 31622400000000
        AND coalesce(octet_length(p_result), 0) <= 4096 AND p_cut IS NOT NULL) IS NOT TRUE THEN
        PERFORM leasehold.refuse_1('complete_1'::text);
    END IF;
    what := 'none'; more := false; channels := '{}'; payloads := '{}';
    PERFORM leasehold.lock_1(p_name, false);
    SELECT * INTO d FROM leasehold.completion t WHERE t.name = p_name AND t.claim = p_claim AND (t.until > clock_timestamp()) IS NOT FALSE;
    IF NOT FOUND THEN
        -- A renewal that is at it is waited for. A transaction of a user's is not.
        SELECT * INTO p FROM leasehold.place t WHERE t.claim = p_claim FOR NO KEY UPDATE;
        now := clock_timestamp();
        IF NOT FOUND OR (p.name = p_name AND p.token = p_token AND p.until > now AND NOT p.parted) IS NOT TRUE THEN
            RETURN;
        END IF;
        PERFORM 1 FROM leasehold.place t WHERE t.name = p_name AND t.seq = p.seq FOR UPDATE SKIP LOCKED;
        IF NOT FOUND THEN
            what := 'pinned';
            RETURN;
        END IF;
        -- That of another which counts stays as it is. One that a transaction of a user's has not committed yet is waited for.
        INSERT INTO leasehold.completion AS t (name, claim, token, label, at, until, fire, result, cut) VALUES (
            p_name, p_claim, p_token, p.label, now, now + p_keep * interval '1 millisecond', mine, p_result, p_cut
        ) ON CONFLICT (name) DO UPDATE SET claim = excluded.claim, token = excluded.token, label = excluded.label, at = excluded.at,
                until = excluded.until, fire = excluded.fire, result = excluded.result, cut = excluded.cut
            WHERE t.until <= clock_timestamp() OR t.fire >= 0 AND t.fire < excluded.fire
        RETURNING * INTO d;
        IF NOT FOUND THEN
            RETURN;
        END IF;
    END IF;
    what := 'done';
    SELECT * INTO d_token, d_label, d_at, d_left, d_fire, d_result, d_cut FROM leasehold.shown_1(d);
    SELECT r.more, r.channels, r.payloads INTO more, channels, payloads FROM leasehold.finish_1(p_name, p_claim, d.fire) r;
END $$;

-- Ends the hold of this claim, and answers whether a transaction of the user's has recorded with `done` that its work is done: `done` with the completion,
-- and whether more waiters are to be told; `none`, and none will; `open` while a transaction keeps the hold, which then stays.
CREATE OR REPLACE FUNCTION leasehold.recorded_1(
    p_name text, p_claim uuid, p_token bigint, p_patience integer,
    OUT what text, OUT more boolean, OUT channels text[], OUT payloads text[],
    OUT d_token bigint, OUT d_label bytea, OUT d_at bigint, OUT d_left bigint, OUT d_fire text, OUT d_result text, OUT d_cut boolean
) LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET plan_cache_mode = force_generic_plan SET jit = off SET row_security = off AS $$
DECLARE
    d leasehold.completion;
    p leasehold.place;
BEGIN
    IF leasehold.enters_1(p_patience) IS NOT TRUE THEN
        PERFORM leasehold.refuse_1('recorded_1'::text);
    END IF;
    what := 'none'; more := false; channels := '{}'; payloads := '{}';
    PERFORM leasehold.lock_1(p_name, false);
    SELECT * INTO p FROM leasehold.place t WHERE t.claim = p_claim FOR NO KEY UPDATE;
    IF FOUND THEN
        PERFORM 1 FROM leasehold.place t WHERE t.name = p.name AND t.seq = p.seq FOR UPDATE SKIP LOCKED;
        IF NOT FOUND THEN
            what := 'open';
            RETURN;
        END IF;
    END IF;
    -- A statement after the one that saw no transaction at it: what that has committed is seen. It is not asked whether it still counts.
    SELECT * INTO d FROM leasehold.completion t WHERE t.name = p_name AND t.claim = p_claim AND t.token = p_token;
    IF FOUND THEN
        what := 'done';
        SELECT * INTO d_token, d_label, d_at, d_left, d_fire, d_result, d_cut FROM leasehold.shown_1(d);
    END IF;
    SELECT r.more, r.channels, r.payloads INTO more, channels, payloads
        FROM leasehold.finish_1(p_name, p_claim, CASE WHEN (d.until > clock_timestamp()) IS NOT FALSE THEN coalesce(d.fire, -1) ELSE -1 END) r;
END $$;

-- The completion of this name that has not ended.
CREATE OR REPLACE FUNCTION leasehold.completion_1(p_name text)
RETURNS TABLE (d_token bigint, d_label bytea, d_at bigint, d_left bigint, d_fire text, d_result text, d_cut boolean)
LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET plan_cache_mode = force_generic_plan SET jit = off SET row_security = off AS $$
    SELECT r.* FROM leasehold.completion t CROSS JOIN LATERAL leasehold.shown_1(t) r
    WHERE t.name = p_name AND (t.until > clock_timestamp()) IS NOT FALSE
$$;

-- Those of the names with this beginning, in the order of their bytes, after `p_after`.
CREATE OR REPLACE FUNCTION leasehold.completions_1(p_prefix text, p_after text, p_limit bigint)
RETURNS TABLE (name text, d_token bigint, d_label bytea, d_at bigint, d_left bigint, d_fire text, d_result text, d_cut boolean)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET plan_cache_mode = force_generic_plan SET jit = off SET row_security = off AS $$
DECLARE
    d leasehold.completion;
    left_ bigint := p_limit;
BEGIN
    FOR d IN SELECT * FROM leasehold.completion t
        WHERE t.name >= p_prefix COLLATE "C" AND (p_after IS NULL OR t.name > p_after COLLATE "C") ORDER BY t.name
    LOOP
        EXIT WHEN left_ <= 0 OR NOT starts_with(d.name, p_prefix);
        CONTINUE WHEN d.until <= clock_timestamp();
        name := d.name;
        SELECT * INTO d_token, d_label, d_at, d_left, d_fire, d_result, d_cut FROM leasehold.shown_1(d);
        RETURN NEXT;
        left_ := left_ - 1;
    END LOOP;
END $$;

-- Removes the completion with this token. Answers whether there was one that had not ended.
CREATE OR REPLACE FUNCTION leasehold.forget_1(p_name text, p_token bigint, p_patience integer) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET plan_cache_mode = force_generic_plan SET jit = off SET row_security = off AS $$
BEGIN
    IF leasehold.enters_1(p_patience) IS NOT TRUE THEN
        PERFORM leasehold.refuse_1('forget_1'::text);
    END IF;
    DELETE FROM leasehold.completion t WHERE t.name = p_name AND t.token = p_token AND (t.until > clock_timestamp()) IS NOT FALSE;
    RETURN FOUND;
END $$;

-- For a transaction of the user's own: what `held` is for, and the work of this name is done once that transaction has committed, with all that it has written.
-- Else the error LH001 if the hold has ended, LH006 if the work is done already, also by an earlier transaction of the same hold. In
-- milliseconds from now on; NULL keeps it for ever.
CREATE OR REPLACE FUNCTION leasehold.done(p_name text, p_token bigint, p_keep bigint, p_result text) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET plan_cache_mode = force_generic_plan SET jit = off SET row_security = off AS $$
DECLARE
    p leasehold.place;
    now timestamptz;
    kept text := left(p_result, 4096);
BEGIN
    IF coalesce(p_keep, 1) NOT BETWEEN 1 AND 31622400000000 THEN
        RAISE EXCEPTION 'an argument of done is out of its bounds' USING ERRCODE = 'LH004';
    END IF;
    PERFORM leasehold.held(p_name, p_token);
    -- Others are told of it, so it is stored before that.
    IF current_setting('synchronous_commit') = 'off' THEN
        PERFORM set_config('synchronous_commit', 'on', true);
    END IF;
    WHILE octet_length(kept) > 4096 LOOP
        kept := left(kept, length(kept) - greatest(1, (octet_length(kept) - 4096) / 4));
    END LOOP;
    -- It cannot go, nor be another's, since `held` has its row.
    SELECT * INTO p FROM leasehold.place t
        WHERE t.name = p_name AND t.seq >= coalesce((SELECT l.head FROM leasehold.lines l WHERE l.name = p_name), 0) AND t.token = p_token;
    now := clock_timestamp();
    INSERT INTO leasehold.completion AS t (name, claim, token, label, at, until, fire, result, cut) VALUES (
        p_name, p.claim, p_token, p.label, now, now + p_keep * interval '1 millisecond', coalesce(p.once, 0), kept, coalesce(kept <> p_result, false)
    ) ON CONFLICT (name) DO UPDATE SET claim = excluded.claim, token = excluded.token, label = excluded.label, at = excluded.at,
            until = excluded.until, fire = excluded.fire, result = excluded.result, cut = excluded.cut
        WHERE t.until <= clock_timestamp() OR t.fire >= 0 AND t.fire < excluded.fire;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'the work is done already' USING ERRCODE = 'LH006';
    END IF;
END $$;
