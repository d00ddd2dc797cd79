//! Which store, and which of fair and fast, suits which need: in words, from the numbers and the promises alone.

use serde::Serialize;

use crate::report::{Contended, Measured, Order};
use crate::subject::Reach;
use crate::units::{digits, ms, rate, times, us};

/// Within this factor two numbers are the same: a run on a machine that also does other things says no more.
const SAME: f64 = 1.15;
/// By this factor fast must serve more before it is worth its order.
const WORTH: f64 = 1.3;

/// An answer to one need.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct Advice {
    /// What somebody needs.
    pub need: String,
    /// What suits it.
    pub choice: String,
    /// Why, with the numbers.
    pub why: String,
}

/// What one store measured for a need, smaller is better.
struct Candidate<'a> {
    store: &'a Measured,
    order: Option<Order>,
    cost: f64,
    shown: String,
}

/// What a store measured for a need: in which order, how much, and how that is shown.
type Find = fn(&Measured) -> Option<(Option<Order>, f64, String)>;

/// Needs that one number decides: what is needed, and how the number is introduced and found. Less is better.
const NEEDS: [(&str, &str, Find); 6] = [
    ("A lock that is mostly free", "taken and given back in", |m| {
        // Nobody is passed, so the order makes no difference.
        least(m.uncontended.iter().map(|u| (None, u.cycle.p50_us, us(u.cycle.p50_us))))
    }),
    ("Many who wait, and as many turns as possible", "with the most waiters, turns in a second:", |m| {
        let most = m.contended.iter().map(|c| c.waiters).max()?;
        let these = m.contended.iter().filter(|c| c.waiters == most);
        least(these.map(|c| (Some(c.order), 1.0 / c.per_second, rate(c.per_second))))
    }),
    ("A released lock that soon works for the next", "with few waiters, handed over in", |m| {
        let few = m.contended.iter().map(|c| c.waiters).min()?;
        let these = m.contended.iter().filter(|c| c.waiters == few);
        least(
            these.filter_map(|c| Some((Some(c.order), c.hand_over.as_ref()?.p50_us, us(c.hand_over.as_ref()?.p50_us)))),
        )
    }),
    ("No waiter waits long, among many", "with the most waiters, the longest wait:", |m| {
        let most = m.contended.iter().map(|c| c.waiters).max()?;
        let these = m.contended.iter().filter(|c| c.waiters == most);
        least(these.map(|c| (Some(c.order), c.wait.max_us, us(c.wait.max_us))))
    }),
    ("Work that goes on soon after a holder died", "from the kill to the next grant,", |m| {
        let recovery = m.recovery.as_ref()?;
        let wait = *recovery.waits_ms.get(recovery.waits_ms.len() / 2)?;
        Some((None, wait as f64, format!("{} on a lease of {}", ms(wait), ms(recovery.lease_ms))))
    }),
    ("Very many locks held at once", "processor time to renew them, in a second:", |m| {
        let renewal = m.renewal.as_ref().filter(|renewal| renewal.lost == 0)?;
        Some((None, renewal.cpu_ms_per_second, us(renewal.cpu_ms_per_second * 1e3)))
    }),
];

pub(crate) fn advise(stores: &[Measured]) -> Vec<Advice> {
    let mut all: Vec<Advice> =
        NEEDS.iter().filter_map(|(need, introduction, find)| decide(stores, need, introduction, *find)).collect();
    all.extend(in_order(stores));
    all.extend(tokens(stores));
    all.extend(fair_or_fast(stores));
    all
}

fn least(found: impl Iterator<Item = (Option<Order>, f64, String)>) -> Option<(Option<Order>, f64, String)> {
    // The first of what is about the same: fair comes first.
    found.reduce(|best, next| if next.1 * SAME < best.1 { next } else { best })
}

fn decide(stores: &[Measured], need: &str, introduction: &str, find: Find) -> Option<Advice> {
    let candidate = |store| find(store).map(|(order, cost, shown)| Candidate { store, order, cost, shown });
    let mut ranked: Vec<Candidate<'_>> = stores.iter().filter_map(candidate).collect();
    ranked.sort_by(|a, b| a.cost.total_cmp(&b.cost));
    // The widest reach decides; a narrower one is worth a word if it is better.
    let widest = ranked.iter().map(|c| c.store.reach).max()?;
    let (wide, narrow): (Vec<_>, Vec<_>) = ranked.into_iter().partition(|c| c.store.reach == widest);
    let best = wide.first()?;
    let equals: Vec<&Candidate<'_>> = wide.iter().filter(|c| c.cost <= best.cost * SAME).collect();
    let names: Vec<String> = equals.iter().map(|c| c.name()).collect();
    let choice = one_of(&names.iter().map(String::as_str).collect::<Vec<_>>());
    let mut why = format!("{introduction} {}", best.shown);
    if equals.len() > 1 {
        let others: Vec<String> = equals[1..].iter().map(|c| format!("{} {}", c.name(), c.shown)).collect();
        why += &format!("; {}: about the same", others.join(", "));
    }
    let others: Vec<String> = wide[equals.len()..]
        .iter()
        .map(|c| format!("{} {} ({})", c.name(), c.shown, ratio(introduction, c.cost / best.cost)))
        .collect();
    if !others.is_empty() {
        why += &format!("; {}", others.join(", "));
    }
    let has_fair = |c: &&&Candidate<'_>| c.store.contended.iter().any(|with| with.order == Order::Fair);
    if equals.iter().filter(|c| c.order == Some(Order::Fast)).any(|c| has_fair(&c)) {
        why += "; fast passes the lock on among tasks of one process, so programs of their own get what fair gives";
    }
    for reach in [Reach::Host, Reach::Process] {
        if let Some(c) = narrow.iter().find(|c| c.store.reach == reach && c.cost * SAME < best.cost) {
            let place = if reach == Reach::Host { "On one host" } else { "Inside of one process" };
            why += &format!(". {place}: {}, {}", c.name(), c.shown);
        }
    }
    Some(Advice { need: need.to_owned(), choice, why: sentence(&why) })
}

impl Candidate<'_> {
    /// The store, and the order where it makes a difference.
    fn name(&self) -> String {
        match self.order {
            Some(order) => format!("{} ({})", self.store.label, order.word()),
            None => self.store.label.clone(),
        }
    }
}

/// How much another number is of the best.
fn ratio(introduction: &str, cost: f64) -> String {
    times(if introduction.contains("turns") { 1.0 / cost } else { cost })
}

/// Who serves strictly in the order of arrival: a promise, and how evenly it turned out.
fn in_order(stores: &[Measured]) -> Option<Advice> {
    let strict: Vec<&Measured> = stores.iter().filter(|m| m.promises.fairness == "strict").collect();
    let most = stores.iter().flat_map(|m| &m.contended).map(|c| c.waiters).max()?;
    let even = strict.iter().filter_map(|m| Some(format!("{:.3} on {}", m.with(Order::Fair, most)?.jain, m.label)));
    let even: Vec<String> = even.collect();
    let names: Vec<&str> = strict.iter().map(|m| &*m.label).collect();
    let (choice, why) = match even.is_empty() {
        true => ("none of these".to_owned(), "no store here keeps a line".to_owned()),
        false => {
            let shares =
                format!("how evenly {most} waiters got their turns (Jain's index, 1 is perfect): {}", even.join(", "));
            (format!("{} (fair)", one_of(&names)), shares)
        }
    };
    Some(Advice { need: "Served strictly in the order of arrival".to_owned(), choice, why: sentence(&why) })
}

/// Who keeps its tokens in order when data are lost: a promise, which no run can measure.
fn tokens(stores: &[Measured]) -> Option<Advice> {
    let with = |fencing: &str| -> Vec<&str> {
        stores.iter().filter(|m| m.promises.fencing == fencing).map(|m| &*m.label).collect()
    };
    let need = "Writes that stay refused even after the store lost its data".to_owned();
    let (best, rest, without) = (with("survives_data_loss"), with("while_data_lives"), with("none"));
    let mut why = match (best.is_empty(), rest.is_empty()) {
        (false, true) => "tokens go on rising, given a clock that does not step back".to_owned(),
        (false, false) => format!(
            "tokens go on rising, given a clock that does not step back; those of {} rise as long as the data live",
            list(&rest)
        ),
        (true, false) => format!(
            "tokens of {} rise as long as the data live: back these up, or have the resource check more",
            list(&rest)
        ),
        (true, true) => "no store here promises rising tokens".to_owned(),
    };
    if !without.is_empty() {
        why += &format!("; {} promises nothing of its tokens", list(&without));
    }
    let choice = if best.is_empty() { "none of these".to_owned() } else { one_of(&best) };
    Some(Advice { need, choice, why: sentence(&why) })
}

/// Whether fast is worth it: one answer for all stores of which it is the same.
fn fair_or_fast(stores: &[Measured]) -> Vec<Advice> {
    const BOTH: &str = "fast for throughput, fair for order";
    const FAIR: &str = "fair";
    const FAST: &str = "fast: there is no line";
    let mut answers = [BOTH, FAIR, FAST].map(|choice| (choice, Vec::new()));
    for m in stores {
        let most = m.contended.iter().map(|c| c.waiters).max();
        let Some(fast) = most.and_then(|most| m.with(Order::Fast, most)) else { continue };
        let fair = m.with(Order::Fair, fast.waiters);
        let answer = match fair {
            None => 2,
            Some(fair) if fast.per_second >= fair.per_second * WORTH => 0,
            Some(_) => 1,
        };
        answers[answer].1.push((m, fast, fair));
    }
    let mut all = Vec::new();
    for (choice, on) in answers.into_iter().filter(|(_, on)| !on.is_empty()) {
        let labels: Vec<&str> = on.iter().map(|(m, ..)| &*m.label).collect();
        let compared: Vec<_> = on.iter().filter_map(|(m, fast, fair)| Some((m, fast, (*fair)?))).collect();
        let each = |shown: &dyn Fn(&Contended, &Contended) -> String| {
            let each: Vec<String> =
                compared.iter().map(|(m, fast, fair)| format!("{} on {}", shown(fast, fair), m.label)).collect();
            list(&each.iter().map(String::as_str).collect::<Vec<_>>())
        };
        let turns = each(&|fast, fair| digits(fast.per_second / fair.per_second));
        let waits = each(&|fast, fair| format!("{} against {}", us(fast.wait.max_us), us(fair.wait.max_us)));
        let crowd = on.first().map(|(_, fast, _)| format!("with {} waiters on {} clients", fast.waiters, fast.clients));
        let crowd = crowd.unwrap_or_default();
        let why = match choice {
            BOTH => format!(
                "{crowd}, turns with fast for each with fair: {turns}, because tasks of one client pass the lock on among \
                 themselves. The longest wait, fast against fair: {waits}"
            ),
            FAIR => format!("{crowd}, fast gives up the order and serves no more; turns for each with fair: {turns}"),
            _ => "the order in which it serves is anybody's guess".to_owned(),
        };
        all.push(Advice {
            need: format!("Fair or fast, on {}", list(&labels)),
            choice: choice.to_owned(),
            why: sentence(&why),
        });
    }
    all
}

/// All of them, as a list in a sentence.
pub(crate) fn list(words: &[&str]) -> String {
    joined(words, "and")
}

/// Any of them.
fn one_of(words: &[&str]) -> String {
    joined(words, "or")
}

fn joined(words: &[&str], last_word: &str) -> String {
    match words {
        [] => String::new(),
        [one] => (*one).to_owned(),
        [most @ .., last] => format!("{} {last_word} {last}", most.join(", ")),
    }
}

/// With a capital and a full stop.
fn sentence(text: &str) -> String {
    let mut letters = text.chars();
    letters.next().map_or_else(String::new, |first| format!("{}{}.", first.to_uppercase(), letters.as_str()))
}
