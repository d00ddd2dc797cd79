//! What nodes do for attempts and for operators, and what these conclude.

use super::{
    Action, Entry, List, NO_NUMBER, NODES, Name, Names, Node, Phase, Program, Record, RedlockNodes,
    Rule, Run, Set, State, each, majority,
};

/// A ballot that is greater than all of them.
const LAST_BALLOT: u8 = u8::MAX;

const NO_LIST: List = List {
    nodes: 0,
    empty: [0; NODES],
    fresh: 0,
};

impl Run {
    pub(super) fn record(&self) -> Record {
        Record {
            number: self.number,
            list: self.new,
        }
    }

    fn record_of_old(&self) -> Record {
        Record {
            number: self.number - 1,
            list: self.old,
        }
    }
}

impl Node {
    pub(super) fn number(&self) -> Option<u8> {
        Some(self.record?.number)
    }

    /// A run for the first number leaves its text here.
    fn leave_text(&mut self, run: &Run) {
        if self.record.is_none() {
            self.text = run.ballot;
        }
    }

    /// It has a record from now on: this one, if it has none.
    fn record_or(&mut self, record: Record) -> Record {
        self.text = 0;
        *self.record.get_or_insert(record)
    }

    /// The list is opened here.
    fn take(&mut self, record: Record, token: u8, folds: bool) {
        (self.record, self.promised, self.accepted) = (Some(record), 0, None);
        self.text = 0;
        if folds {
            self.until_before = self.until_before.max(self.until);
        }
        self.until = 0;
        self.token = self.token.max(token);
    }
}

/// Attempts.
impl RedlockNodes {
    pub(super) fn has(&self, rule: Rule) -> bool {
        self.without != Some(rule)
    }

    pub(super) fn votes(&self, s: &State, client: u8, of: &Program, actions: &mut Vec<Action>) {
        let it = &s.clients[usize::from(client)];
        if self.releases && it.valid + it.left > 0 {
            actions.push(Action::Release(client));
        }
        if it.left == 0 && it.valid == of.lease {
            return;
        }
        let numbers = match it.left {
            0 if of.is_numbered => self.numbers(s, of),
            0 => vec![NO_NUMBER],
            _ => vec![it.number],
        };
        if self.holds.is_some() {
            return self.attempts(s, client, of, &numbers, actions);
        }
        for node in each(of.list) {
            let at = &s.nodes[node];
            let is_free = at.entry.is_none_or(|entry| entry.client == client);
            if at.voted & (1 << client) != 0 || !is_free {
                continue;
            }
            for &number in &numbers {
                if self.serves(s, at, client, number) {
                    actions.push(Action::Vote {
                        client,
                        node: Name(node),
                        number,
                    });
                }
            }
        }
    }

    /// Attempts that get the votes of a majority at once. Renewals have the token of the hold.
    fn attempts(
        &self,
        s: &State,
        client: u8,
        of: &Program,
        numbers: &[u8],
        actions: &mut Vec<Action>,
    ) {
        if s.clients[usize::from(client)].valid > 0 || s.holds == 0 {
            return;
        }
        let is_majority =
            |set: &Set| set & !of.list == 0 && set.count_ones() as usize == majority(of.list);
        for voters in (0..=of.list).filter(is_majority) {
            for &number in numbers {
                let would = |at: usize| {
                    s.nodes[at].entry.is_none() && self.serves(s, &s.nodes[at], client, number)
                };
                if each(voters).all(would) {
                    actions.push(Action::Attempt {
                        client,
                        voters: Names(voters),
                        number,
                    });
                }
            }
        }
    }

    pub(super) fn attempt(&self, s: &mut State, client: u8, voters: Set, number: u8) {
        s.holds -= 1;
        for at in each(voters) {
            self.vote(s, client, at, number);
        }
    }

    /// Those that a program of this list may have learnt when it connected: nodes tell their records.
    fn numbers(&self, s: &State, of: &Program) -> Vec<u8> {
        let list = of.list;
        let from_proposals = !self.has(Rule::LearnsFromRecords) || !self.has(Rule::RefusesNewer);
        let is_told = |node: &Node, number: u8| {
            let proposed = node.accepted.filter(|_| from_proposals);
            let is_record = |it: Record| (it.number, it.list.nodes) == (number, list);
            node.record.is_some_and(is_record)
                || node.number() == number.checked_sub(1)
                    && proposed.is_some_and(|(_, new)| new.nodes == list)
        };
        let is_mine = |number: &u8| {
            s.opened[usize::from(*number)].is_some_and(|it| it.nodes == list)
                || s.nodes.iter().any(|node| is_told(node, *number))
        };
        (of.least..=self.last).filter(is_mine).collect()
    }

    fn serves(&self, s: &State, node: &Node, client: u8, number: u8) -> bool {
        let is_own = node.entry.is_some_and(|entry| entry.client == client);
        if number == NO_NUMBER
            || !self.has(Rule::EveryAttempt) && number == 0
            || !self.has(Rule::Renewals) && is_own
        {
            return true;
        }
        if self.has(Rule::ComparesNumbers) {
            return self.serves_number(node, number);
        }
        let of = |number: u8| s.opened[usize::from(number)].map(|list| list.nodes);
        (0..=self.last).any(|other| of(other) == of(number) && self.serves_number(node, other))
    }

    fn serves_number(&self, node: &Node, number: u8) -> bool {
        let Some(own) = node.number() else {
            return self.unnumbered && number == 0 || !self.has(Rule::RefusesWithoutRecord);
        };
        let is_closed = node.accepted.is_some() && self.has(Rule::RefusesFromClosing);
        if number > own {
            !self.has(Rule::RefusesNewer)
        } else {
            number == own
                || number + 1 == own && !is_closed
                || number + 1 < own && !self.has(Rule::RefusesOlder)
        }
    }

    pub(super) fn vote(&self, s: &mut State, client: u8, at: usize, number: u8) {
        let lease = self.programs[usize::from(client)].lease;
        let tokens = self.holds.is_some();
        let node = &mut s.nodes[at];
        node.token += u8::from(tokens);
        node.entry = Some(Entry {
            client,
            left: lease,
        });
        let is_before = node.number().is_some_and(|own| number < own);
        let until = if is_before {
            &mut node.until_before
        } else {
            &mut node.until
        };
        if number != NO_NUMBER {
            *until = lease.max(*until);
        }
        node.voted |= 1 << client;
        let it = &mut s.clients[usize::from(client)];
        if it.left == 0 {
            (it.left, it.number, it.token) = (lease, number, 0);
        }
        it.token = it.token.max(node.token);
        let token = it.token;
        let voters = s
            .nodes
            .iter_mut()
            .filter(|it| it.voted & (1 << client) != 0);
        let mut count = 0;
        // Once a majority has voted, the token is written back.
        for voter in voters {
            count += 1;
            if self.holds.is_some() {
                voter.token = voter.token.max(token);
            }
        }
        if count >= majority(self.programs[usize::from(client)].list) {
            let it = &mut s.clients[usize::from(client)];
            it.valid = it.valid.max(it.left);
            s.fell |= tokens && token <= s.greatest;
            s.greatest = s.greatest.max(token);
            s.no_attempt(client);
        }
    }
}

/// The operator's runs.
impl RedlockNodes {
    pub(super) fn starts(&self, s: &State, operator: u8, actions: &mut Vec<Action>) {
        let has_ballot = s.ballots[usize::from(operator)] > 0;
        for (want, &(old, new)) in (0..).zip(self.wants[usize::from(operator)]) {
            if has_ballot && old == new && old == self.first && self.may_be_first(s) {
                actions.push(Action::First(operator));
            }
            for (at, node) in s.nodes.iter().enumerate() {
                let has_number = |it: &Record| it.number > 0 || !self.unnumbered;
                let Some(record) = node.record.filter(has_number) else {
                    continue;
                };
                let is_alike = |it: &Node| it.record == node.record && it.accepted == node.accepted;
                let is_known = |it: &Node| is_alike(it) && it.token == node.token;
                if s.nodes[..at].iter().any(is_known) {
                    continue;
                }
                let at = Name(at);
                let may_be_silent = |at: &usize| {
                    self.silent && (s.nodes[*at].record.is_none() || record.list.empty[*at] != 0)
                };
                let all_silent = each(old & new).filter(may_be_silent);
                let all_silent: Set = all_silent.map(|at| 1 << at).sum();
                if record.list.nodes == old && record.number < self.last && has_ballot {
                    for silent in (0..=all_silent).filter(|set| set & !all_silent == 0) {
                        actions.push(Action::Start {
                            operator,
                            want,
                            at,
                            silent: Names(silent),
                            accepted: false,
                        });
                    }
                }
                let before = record.number.checked_sub(1);
                let is_before = |number: u8| {
                    s.opened[usize::from(number)].is_some_and(|list| list.nodes == old)
                };
                if record.list.nodes == new && before.is_some_and(is_before) {
                    actions.push(Action::Resume { operator, want, at });
                }
                let closed = s.nodes.iter().filter(|it| is_alike(it)).count();
                if !self.has(Rule::StartsWhenOpen)
                    && record.number + 1 < self.last
                    && has_ballot
                    && node.accepted.is_some_and(|(_, list)| list.nodes == old)
                    && closed >= majority(record.list.nodes)
                {
                    actions.push(Action::Start {
                        operator,
                        want,
                        at,
                        silent: Names(0),
                        accepted: true,
                    });
                }
            }
        }
    }

    /// By the record of this node, a run may give the first number.
    fn allows_first(&self, node: &Node) -> bool {
        node.number() <= Some(u8::from(!self.has(Rule::FirstOnce)))
    }

    /// A run may give the first number, by the records that it reads.
    fn may_be_first(&self, s: &State) -> bool {
        let may = |at: usize| self.allows_first(&s.nodes[at]);
        let mut nodes = each(self.first);
        self.unnumbered
            && if self.has(Rule::FirstHearsAll) {
                nodes.all(may)
            } else {
                nodes.any(may)
            }
    }

    fn is_first(&self, run: &Run) -> bool {
        self.unnumbered && run.number == 1
    }

    /// The list that programs use before there are numbers.
    fn record_zero(&self) -> Record {
        let nodes = self.first;
        Record {
            number: 0,
            list: List { nodes, ..NO_LIST },
        }
    }

    /// What an operator proposes after this record.
    fn wish(&self, s: &State, after: Record, nodes: Set, silent: Set) -> List {
        let mut list = List { nodes, ..NO_LIST };
        if self.unnumbered && after.number == 0 {
            return list;
        }
        for at in each(nodes) {
            let node = &s.nodes[at];
            if silent & (1 << at) != 0 {
                if self.has(Rule::FreshIfSilent) && after.list.empty[at] != 0 {
                    list.empty[at] = after.list.empty[at];
                    list.fresh |= 1 << at;
                }
                continue;
            }
            if node.record.is_some() {
                continue;
            }
            list.empty[at] = node.life;
            let is_new = after.list.nodes & (1 << at) == 0;
            let may_be_fresh = self.has(Rule::FreshAgain) || after.list.is_absent(at);
            if is_new || may_be_fresh && after.list.empty[at] == node.life {
                list.fresh |= 1 << at;
            }
        }
        list
    }

    pub(super) fn first(&self, s: &mut State, operator: u8) {
        self.begin(s, operator, self.record_zero(), self.record_zero().list, 0);
        if let Some(run) = &mut s.runs[usize::from(operator)] {
            run.phase = Phase::Text;
        }
    }

    pub(super) fn start(
        &self,
        s: &mut State,
        operator: u8,
        want: u8,
        at: usize,
        silent: Set,
        accepted: bool,
    ) {
        let node = s.nodes[at];
        let (_, new) = self.wants[usize::from(operator)][usize::from(want)];
        let Some(mut after) = node.record else {
            return;
        };
        if let (true, Some((_, list))) = (accepted, node.accepted) {
            (after.number, after.list) = (after.number + 1, list);
        }
        let new = self.wish(s, after, new, silent);
        let token = self.token_of(&node, Rule::LearnsWithToken);
        self.begin(s, operator, after, new, token);
    }

    fn begin(&self, s: &mut State, operator: u8, after: Record, new: List, token: u8) {
        let who = usize::from(operator);
        s.ballots[who] -= 1;
        let ballot = 2 * (self.ballots[who] - s.ballots[who]) + operator;
        s.runs[who] = Some(Run {
            number: after.number + 1,
            old: after.list,
            new,
            ballot,
            best: 0,
            phase: if self.has(Rule::HasBallots) {
                Phase::Promise
            } else {
                Phase::Close
            },
            wait: 0,
            token,
        });
    }

    pub(super) fn resume(&self, s: &mut State, operator: u8, want: u8, at: usize) {
        let who = usize::from(operator);
        let Some(record) = s.nodes[at].record else {
            return;
        };
        let run = Run {
            number: record.number,
            old: List {
                nodes: self.wants[who][usize::from(want)].0,
                ..NO_LIST
            },
            new: record.list,
            ballot: 0,
            best: 0,
            phase: Phase::Open,
            wait: 0,
            token: self.token_of(&s.nodes[at], Rule::ResumesWithToken),
        };
        s.runs[who] = Some(run);
    }

    /// What a run tells those that have missed the record of this node, beside it.
    fn token_of(&self, node: &Node, rule: Rule) -> u8 {
        if self.has(rule) { node.token } else { 0 }
    }

    /// Those that a run asks, and how many must answer.
    fn quorum(&self, run: &Run) -> (Set, usize) {
        let of = if self.has(Rule::ClosesOld) {
            run.old.nodes
        } else {
            run.new.nodes
        };
        let of_all = match run.phase {
            Phase::Text => true,
            Phase::ReadAgain if !self.has(Rule::FirstHearsAll) => return (of, 1),
            Phase::ReadAgain => true,
            Phase::Promise => self.is_first(run) && self.has(Rule::FirstByAll),
            Phase::Close | Phase::Open => false,
        };
        if of_all {
            return (of, of.count_ones() as usize);
        }
        let less = usize::from(!self.has(Rule::ClosesMajority) && run.phase == Phase::Close);
        (of, majority(of) - less)
    }

    pub(super) fn steps_of(&self, s: &State, operator: u8, run: &Run, actions: &mut Vec<Action>) {
        actions.push(Action::End(operator));
        let asked = match run.phase {
            Phase::Open if run.wait > 0 => return,
            Phase::Open => run.old.nodes | run.new.nodes,
            _ => self.quorum(run).0,
        };
        for at in each(asked).filter(|at| s.nodes[*at].answered & (1 << operator) == 0) {
            let (node, name) = (&s.nodes[at], Name(at));
            let action = match run.phase {
                Phase::Text => Some(Action::Text(operator, name)),
                Phase::ReadAgain => self
                    .allows_first(node)
                    .then_some(Action::ReadAgain(operator, name)),
                Phase::Promise if self.is_behind(node, at, run) => {
                    actions.push(Action::BringUp(operator, name));
                    None
                }
                Phase::Promise => self
                    .would_promise(node, run)
                    .then_some(Action::Promise(operator, name)),
                Phase::Close => self
                    .would_close(node, run)
                    .then_some(Action::Close(operator, name)),
                Phase::Open => self
                    .would_open(node, at, run.record())
                    .then_some(Action::Open(operator, name)),
            };
            let may_be_lost = matches!(run.phase, Phase::Promise | Phase::Close);
            if s.lost > 0 && may_be_lost && action.is_some() {
                actions.push(Action::AnswerLost(operator, name));
            }
            actions.extend(action);
        }
    }

    pub(super) fn answer_lost(&self, s: &mut State, operator: u8, at: usize) {
        s.lost -= 1;
        match s.runs[usize::from(operator)] {
            Some(mut run) if run.phase == Phase::Promise => self.promise(s, at, &mut run),
            Some(mut run) => self.close(s, at, &mut run),
            None => {}
        }
    }

    /// A node that has OLD has a say in what comes after OLD. One without a record has it if it may promise for the first number.
    fn has_a_say(&self, node: &Node, run: &Run) -> bool {
        match node.number() {
            Some(own) => {
                let counts_open = !self.has(Rule::EndsWhereOpen)
                    || self.is_first(run) && !self.has(Rule::FirstOnce);
                own + 1 == run.number || own == run.number && counts_open
            }
            None => {
                let has_text = node.text == run.ballot || !self.has(Rule::FirstKeepsText);
                !self.has(Rule::EmptiedHasNoVote)
                    || self.is_first(run) && run.phase == Phase::Promise && has_text
            }
        }
    }

    fn would_promise(&self, node: &Node, run: &Run) -> bool {
        let is_later = run.ballot >= node.promised || !self.has(Rule::KeepsPromises);
        self.has_a_say(node, run) && is_later
    }

    fn would_close(&self, node: &Node, run: &Run) -> bool {
        let is_later = run.ballot >= node.promised || !self.has(Rule::KeepsPromises);
        let is_taken =
            !self.has(Rule::HasBallots) && node.accepted.is_some_and(|(_, list)| list != run.new);
        let is_later = is_later || !self.has(Rule::HasBallots);
        self.has_a_say(node, run) && is_later && !is_taken
    }

    fn is_behind(&self, node: &Node, at: usize, run: &Run) -> bool {
        let old = run.record_of_old();
        node.record.is_some() && self.would_open(node, at, old)
    }

    fn would_open(&self, node: &Node, at: usize, record: Record) -> bool {
        match node.number() {
            Some(own) => own < record.number && !record.list.is_absent(at),
            None => {
                let is_fresh = record.list.fresh & (1 << at) != 0 || !self.has(Rule::AbsentFirst);
                let is_same = record.list.empty[at] == node.life
                    || !self.has(Rule::SameLife)
                    || !self.has(Rule::AbsentFirst);
                is_fresh && is_same
            }
        }
    }

    pub(super) fn bring_up(&self, s: &mut State, operator: u8, at: usize) {
        if let Some(run) = s.runs[usize::from(operator)] {
            self.bring_up_for(s, at, &run);
        }
    }

    fn bring_up_for(&self, s: &mut State, at: usize, run: &Run) {
        let old = run.record_of_old();
        s.nodes[at].take(old, run.token, self.has(Rule::FoldsDeadlines));
        if self.has(Rule::StartsWhenOpen) {
            s.note(old);
        }
    }

    fn promise(&self, s: &mut State, at: usize, run: &mut Run) {
        let node = &mut s.nodes[at];
        let record = node.record_or(run.record_of_old());
        if record.number == run.number {
            (run.best, run.new) = (LAST_BALLOT, record.list);
            return;
        }
        node.promised = run.ballot;
        if let Some((ballot, list)) = node.accepted
            && ballot > run.best
            && self.has(Rule::Adopts)
        {
            (run.best, run.new) = (ballot, list);
        }
    }

    fn close(&self, s: &mut State, at: usize, run: &mut Run) {
        let node = &mut s.nodes[at];
        let record = node.record_or(run.record_of_old());
        if record.number < run.number {
            (node.promised, node.accepted) = (run.ballot, Some((run.ballot, run.new)));
        }
        if self.has(Rule::Waits) {
            run.wait = run.wait.max(node.until_before);
        }
        if self.has(Rule::OpensWithToken) {
            run.token = run.token.max(node.token);
        }
    }

    pub(super) fn leave_text(&self, s: &mut State, operator: u8, at: usize) {
        let Some(mut run) = s.runs[usize::from(operator)] else {
            return;
        };
        s.nodes[at].leave_text(&run);
        if s.answers(operator, at) >= self.quorum(&run).1 {
            run.phase = if self.has(Rule::FirstReadsAgain) {
                Phase::ReadAgain
            } else {
                Phase::Promise
            };
            s.no_answers(operator);
        }
        s.runs[usize::from(operator)] = Some(run);
    }

    pub(super) fn read_again(&self, s: &mut State, operator: u8, at: usize) {
        let Some(mut run) = s.runs[usize::from(operator)] else {
            return;
        };
        if s.answers(operator, at) >= self.quorum(&run).1 {
            run.phase = Phase::Promise;
            s.no_answers(operator);
        }
        s.runs[usize::from(operator)] = Some(run);
    }

    pub(super) fn ask_promise(&self, s: &mut State, operator: u8, at: usize) {
        let Some(mut run) = s.runs[usize::from(operator)] else {
            return;
        };
        self.promise(s, at, &mut run);
        if s.answers(operator, at) >= self.quorum(&run).1 {
            (run.phase, run.best) = (Phase::Close, 0);
            s.no_answers(operator);
        }
        s.runs[usize::from(operator)] = Some(run);
    }

    pub(super) fn ask_close(&self, s: &mut State, operator: u8, at: usize) {
        let Some(mut run) = s.runs[usize::from(operator)] else {
            return;
        };
        self.close(s, at, &mut run);
        if s.answers(operator, at) >= self.quorum(&run).1 {
            (run.phase, run.ballot) = (Phase::Open, 0);
            (run.old.empty, run.old.fresh) = (NO_LIST.empty, NO_LIST.fresh);
            s.no_answers(operator);
        }
        s.runs[usize::from(operator)] = Some(run);
    }

    pub(super) fn open(&self, s: &mut State, at: usize, record: Record, token: u8) {
        s.nodes[at].take(record, token, self.has(Rule::FoldsDeadlines));
        s.note(record);
    }

    pub(super) fn empty(&self, s: &mut State, at: usize) {
        s.empties -= 1;
        let node = &mut s.nodes[at];
        // What was answered before stays with who has heard it.
        *node = Node {
            record: None,
            promised: 0,
            accepted: None,
            text: 0,
            until: 0,
            until_before: 0,
            token: 0,
            entry: None,
            life: node.life + 1,
            ..*node
        };
        if let (false, Some(list)) = (self.has(Rule::EmptiedIsNotZero), s.opened[0]) {
            node.record = Some(Record { number: 0, list });
        }
    }

    /// Everybody has gone, and a run comes that is alone. It ends, with all that come after it, and a client finds a majority.
    pub(super) fn ends_alone(&self, s: &State) -> bool {
        let mut s = *s;
        for operator in 0..s.runs.len() {
            s.end(operator as u8);
        }
        for node in &mut s.nodes {
            (node.until, node.until_before, node.entry) = (0, 0, None);
        }
        let is_up = |at: &usize| self.down.unwrap_or_default() & (1 << at) == 0;
        for _ in 0..=self.last {
            let up = (0..NODES).filter(is_up);
            let newest = up.filter_map(|at| s.nodes[at].record).max();
            let Some(newest) = newest.or(self.unnumbered.then(|| self.record_zero())) else {
                return false;
            };
            let all = newest.list.nodes;
            for at in each(all).filter(is_up) {
                if self.would_open(&s.nodes[at], at, newest) {
                    self.open(&mut s, at, newest, 0);
                }
            }
            let serve = |at: &usize| self.serves_number(&s.nodes[*at], newest.number);
            if each(all).filter(is_up).filter(serve).count() < majority(all) {
                return false;
            }
            let mut wants = self.wants.iter().flat_map(|of| of.iter());
            let want = wants.find(|(old, _)| *old == newest.list.nodes);
            let Some(&(_, new)) = want.filter(|_| newest.number < self.last) else {
                return true;
            };
            if self.unnumbered && newest.number == 0 && !each(all).all(|at| is_up(&at)) {
                // It waits for every node. Programs need no number until then.
                return true;
            }
            if !self.changes_alone(&mut s, newest, new) {
                return false;
            }
        }
        true
    }

    fn changes_alone(&self, s: &mut State, after: Record, new: Set) -> bool {
        let mut run = Run {
            number: after.number + 1,
            old: after.list,
            new: self.wish(s, after, new, 0),
            ballot: LAST_BALLOT,
            best: 0,
            phase: Phase::Promise,
            wait: 0,
            token: 0,
        };
        let (asks, mut needed) = self.quorum(&run);
        let up = asks & !self.down.unwrap_or_default();
        let mut count = 0;
        for at in each(up) {
            if self.is_first(&run) {
                s.nodes[at].leave_text(&run);
            }
            if self.is_behind(&s.nodes[at], at, &run) {
                self.bring_up_for(s, at, &run);
            }
            if self.would_promise(&s.nodes[at], &run) {
                self.promise(s, at, &mut run);
                count += 1;
            }
        }
        if count < needed {
            return false;
        }
        if !self.has(Rule::HasBallots) {
            let accepted = |at: usize| Some(s.nodes[at].accepted?.1);
            let like = |list: &List| each(up).filter(|at| accepted(*at) == Some(*list)).count();
            run.new = each(up)
                .filter_map(accepted)
                .max_by_key(like)
                .unwrap_or(run.new);
        }
        run.phase = Phase::Close;
        (count, needed) = (0, self.quorum(&run).1);
        for at in each(up) {
            if self.would_close(&s.nodes[at], &run) {
                self.close(s, at, &mut run);
                count += 1;
            }
        }
        if count < needed {
            return false;
        }
        for at in each((run.old.nodes | run.new.nodes) & !self.down.unwrap_or_default()) {
            if self.would_open(&s.nodes[at], at, run.record()) {
                self.open(s, at, run.record(), 0);
            }
        }
        true
    }

    /// Nodes that are alike get an order.
    pub(super) fn settle(&self, s: &mut State) {
        for &group in self.alike {
            let members: Vec<usize> = each(group).collect();
            let mut sorted = members.clone();
            sorted.sort_by_key(|at| s.nodes[*at]);
            if sorted != members {
                let mut from: [usize; NODES] = std::array::from_fn(|at| at);
                for (to, at) in members.iter().zip(&sorted) {
                    from[*to] = *at;
                }
                s.rename(&from);
            }
        }
    }
}

impl List {
    /// Listed, and not opened.
    fn is_absent(&self, at: usize) -> bool {
        self.empty[at] != 0 && self.fresh & (1 << at) == 0
    }

    fn rename(&mut self, from: &[usize; NODES]) {
        self.empty = from.map(|at| self.empty[at]);
        let fresh = |at: &usize| self.fresh & (1 << from[*at]) != 0;
        self.fresh = (0..NODES).filter(fresh).map(|at| 1 << at).sum();
    }
}

impl State {
    fn rename(&mut self, from: &[usize; NODES]) {
        self.nodes = from.map(|at| self.nodes[at]);
        for node in &mut self.nodes {
            if let Some(record) = &mut node.record {
                record.list.rename(from);
            }
            if let Some((_, list)) = &mut node.accepted {
                list.rename(from);
            }
        }
        for run in self.runs.iter_mut().flatten() {
            run.old.rename(from);
            run.new.rename(from);
        }
        for list in self.opened.iter_mut().flatten() {
            list.rename(from);
        }
    }

    /// A node has this record.
    fn note(&mut self, record: Record) {
        let first = self.opened[usize::from(record.number)].get_or_insert(record.list);
        self.two_lists |= *first != record.list;
    }

    pub(super) fn tick(&mut self) {
        for node in &mut self.nodes {
            node.until = node.until.saturating_sub(1);
            node.until_before = node.until_before.saturating_sub(1);
            if let Some(entry) = &mut node.entry {
                entry.left -= 1;
            }
            node.entry.take_if(|entry| entry.left == 0);
        }
        for at in 0..self.clients.len() {
            let client = &mut self.clients[at];
            client.valid = client.valid.saturating_sub(1);
            client.left = client.left.saturating_sub(1);
            if client.left == 0 {
                self.no_attempt(at as u8);
            }
        }
        for run in self.runs.iter_mut().flatten() {
            run.wait = run.wait.saturating_sub(1);
        }
    }

    fn no_attempt(&mut self, client: u8) {
        let it = &mut self.clients[usize::from(client)];
        (it.left, it.number, it.token) = (0, 0, 0);
        for node in &mut self.nodes {
            node.voted &= !(1 << client);
        }
    }

    pub(super) fn release(&mut self, client: u8) {
        self.no_attempt(client);
        self.clients[usize::from(client)].valid = 0;
        for node in &mut self.nodes {
            node.entry.take_if(|entry| entry.client == client);
        }
    }

    pub(super) fn end(&mut self, operator: u8) {
        if let Some(run) = self.runs[usize::from(operator)].take() {
            let has_text = |node: &&mut Node| node.text == run.ballot;
            // Nobody asks for it any more.
            self.nodes
                .iter_mut()
                .filter(has_text)
                .for_each(|node| node.text = 0);
        }
        self.no_answers(operator);
    }

    fn no_answers(&mut self, operator: u8) {
        for node in &mut self.nodes {
            node.answered &= !(1 << operator);
        }
    }

    /// Counts this answer too.
    fn answers(&mut self, operator: u8, at: usize) -> usize {
        self.nodes[at].answered |= 1 << operator;
        let has = |node: &&Node| node.answered & (1 << operator) != 0;
        self.nodes.iter().filter(has).count()
    }
}
