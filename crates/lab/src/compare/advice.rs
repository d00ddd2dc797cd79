//! Which store, and which of fair and fast, suits which need: in words, from the numbers and the promises alone.

use leasehold::{Fairness, Fencing};
use serde::Serialize;

use crate::compare::report::{Contended, Measured, Order};
use crate::compare::subject::Reach;
use crate::measure::units::{digits, ms, rate, times, us};

/// Within this factor two numbers are the same: a run on a machine that also does other things says no more.
const SAME: f64 = 1.15;
/// By this factor fast must serve more before it is worth its order.
const WORTH: f64 = 1.3;
const NONE: &str = "none of these";

/// An answer to one need.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct Advice {
    /// The need.
    pub need: String,
    /// The store, or the order, that suits the need.
    pub choice: String,
    /// Why, with the numbers.
    pub why: String,
}

/// The measurement of one store for a need; a smaller one is better.
struct Candidate<'a> {
    store: &'a Measured,
    order: Option<Order>,
    cost: f64,
    shown: String,
}

/// The measurement of a store for a need: the order, the number, and its text. Less is better.
type Found = (Option<Order>, f64, String);

/// Needs that one number decides: the need, and how the number is introduced and found.
type Need = (&'static str, &'static str, fn(&Measured) -> Option<Found>);

const NEEDS: [Need; 6] = [
    (
        "A lock that is mostly free",
        "acquired and released in",
        |m| {
            // No waiter is passed, so the order makes no difference.
            least(
                m.uncontended
                    .iter()
                    .map(|u| (None, u.cycle.p50_us, us(u.cycle.p50_us))),
            )
        },
    ),
    (
        "Many waiters, and as many turns as possible",
        "with the most waiters, turns in a second:",
        |m| {
            with_waiters(m, most(m)?, |c| {
                Some((1.0 / c.per_second, rate(c.per_second)))
            })
        },
    ),
    (
        "A short hand-over to the next waiter",
        "with few waiters, handed over in",
        |m| {
            let few = m.contended.iter().map(|c| c.waiters).min()?;
            with_waiters(m, few, |c| {
                c.hand_over.as_ref().map(|l| (l.p50_us, us(l.p50_us)))
            })
        },
    ),
    (
        "No waiter waits long, among many",
        "with the most waiters, the longest wait:",
        |m| with_waiters(m, most(m)?, |c| Some((c.wait.max_us, us(c.wait.max_us)))),
    ),
    (
        "Work that goes on soon after a holder died",
        "from the kill to the next grant,",
        |m| {
            let recovery = m.recovery.as_ref()?;
            let wait = *recovery.waits_ms.get(recovery.waits_ms.len() / 2)?;
            Some((
                None,
                wait as f64,
                format!("{} on a lease of {}", ms(wait), ms(recovery.lease_ms)),
            ))
        },
    ),
    (
        "Very many locks held at once",
        "processor time to renew them, in a second:",
        |m| {
            let renewal = m.renewal.as_ref().filter(|renewal| renewal.lost == 0)?;
            Some((
                None,
                renewal.cpu_ms_per_second,
                us(renewal.cpu_ms_per_second * 1e3),
            ))
        },
    ),
];

pub(crate) fn advise(stores: &[Measured]) -> Vec<Advice> {
    let decided = NEEDS.iter().filter_map(|need| decide(stores, need));
    decided
        .chain(in_order(stores))
        .chain([tokens(stores)])
        .chain(stores.iter().filter_map(fair_or_fast))
        .collect()
}

/// The greatest number of waiters.
fn most(m: &Measured) -> Option<usize> {
    m.contended.iter().map(|c| c.waiters).max()
}

fn with_waiters(
    m: &Measured,
    waiters: usize,
    cost: fn(&Contended) -> Option<(f64, String)>,
) -> Option<Found> {
    let these = m.contended.iter().filter(|c| c.waiters == waiters);
    least(these.filter_map(|c| cost(c).map(|(cost, shown)| (Some(c.order), cost, shown))))
}

fn least(found: impl Iterator<Item = Found>) -> Option<Found> {
    // The first of what is about the same: fair comes first.
    found.reduce(|best, next| if next.1 * SAME < best.1 { next } else { best })
}

fn decide(stores: &[Measured], (need, introduction, find): &Need) -> Option<Advice> {
    let candidate = |store| {
        find(store).map(|(order, cost, shown)| Candidate {
            store,
            order,
            cost,
            shown,
        })
    };
    let mut ranked: Vec<Candidate<'_>> = stores.iter().filter_map(candidate).collect();
    ranked.sort_by(|a, b| a.cost.total_cmp(&b.cost));
    // The widest reach decides; a narrower one is worth a word if it is better.
    let widest = ranked.iter().map(|c| c.store.reach).max()?;
    let (wide, narrow): (Vec<_>, Vec<_>) =
        ranked.into_iter().partition(|c| c.store.reach == widest);
    let best = wide.first()?;
    let (equals, others) = wide.split_at(
        wide.iter()
            .take_while(|c| c.cost <= best.cost * SAME)
            .count(),
    );
    let mut why = format!("{introduction} {}", best.shown);
    if equals.len() > 1 {
        let same: Vec<String> = equals[1..]
            .iter()
            .map(|c| format!("{} {}", c.name(), c.shown))
            .collect();
        why += &format!("; {}: about the same", same.join(", "));
    }
    // The ratio to the best number. A greater number of turns is better, so it is inverted.
    let ratio = |c: &Candidate<'_>| {
        if introduction.contains("turns") {
            best.cost / c.cost
        } else {
            c.cost / best.cost
        }
    };
    if !others.is_empty() {
        let others: Vec<String> = others
            .iter()
            .map(|c| format!("{} {} ({})", c.name(), c.shown, times(ratio(c))))
            .collect();
        why += &format!("; {}", others.join(", "));
    }
    if equals
        .iter()
        .any(|c| c.order == Some(Order::Fast) && c.store.orders().any(|order| order == Order::Fair))
    {
        why += "; fast passes the lock on among tasks of one process, so programs of their own get what fair gives";
    }
    for (reach, place) in [
        (Reach::Host, "On one host"),
        (Reach::Process, "Inside of one process"),
    ] {
        if let Some(c) = narrow
            .iter()
            .find(|c| c.store.reach == reach && c.cost * SAME < best.cost)
        {
            why += &format!(". {place}: {}, {}", c.name(), c.shown);
        }
    }
    let names: Vec<String> = equals.iter().map(Candidate::name).collect();
    Some(advice(*need, joined(&names, "or"), &why))
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

/// Which stores serve strictly in the order of arrival: a promise, and how evenly it turned out.
fn in_order(stores: &[Measured]) -> Option<Advice> {
    let most = stores.iter().filter_map(most).max()?;
    let strict: Vec<&Measured> = stores
        .iter()
        .filter(|m| m.promises.fairness() == Fairness::Strict)
        .collect();
    let even = strict.iter().filter_map(|m| {
        Some(format!(
            "{:.3} on {}",
            m.with(Order::Fair, most)?.jain,
            m.label
        ))
    });
    let even: Vec<String> = even.collect();
    let need = "Served strictly in the order of arrival";
    if even.is_empty() {
        return Some(advice(need, NONE, "no store here keeps a queue"));
    }
    let names: Vec<&str> = strict.iter().map(|m| &*m.label).collect();
    let why = format!(
        "how evenly {most} waiters got their turns (Jain's index, 1 is perfect): {}",
        even.join(", ")
    );
    Some(advice(
        need,
        format!("{} (fair)", joined(&names, "or")),
        &why,
    ))
}

/// Which stores keep their tokens in order when data are lost: a promise, which no run can measure.
fn tokens(stores: &[Measured]) -> Advice {
    let with = |fencing: Fencing| -> Vec<&str> {
        stores
            .iter()
            .filter(|m| m.promises.fencing() == fencing)
            .map(|m| &*m.label)
            .collect()
    };
    let best = with(Fencing::SurvivesDataLoss);
    let rest = with(Fencing::WhileDataLives);
    let without = with(Fencing::None);
    let rising = "tokens go on rising, given a clock that does not step back";
    let mut why = match (best.is_empty(), rest.is_empty()) {
        (false, true) => rising.to_owned(),
        (false, false) => format!(
            "{rising}; those of {} rise as long as the data live",
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
    let choice = if best.is_empty() {
        NONE.to_owned()
    } else {
        joined(&best, "or")
    };
    advice(
        "Writes that stay refused even after the store lost its data",
        choice,
        &why,
    )
}

/// The advice whether `fast` gains enough on this store to give up the order.
fn fair_or_fast(m: &Measured) -> Option<Advice> {
    let fast = m.with(Order::Fast, most(m)?)?;
    let (choice, why) = match m.with(Order::Fair, fast.waiters) {
        None => (
            "fast: there is no queue",
            "the order in which it serves is not defined".to_owned(),
        ),
        Some(fair) => {
            let turns = fast.per_second / fair.per_second;
            let compared = format!(
                "with {} waiters on {} clients, {} turns with fast for each with fair",
                fast.waiters,
                fast.clients,
                digits(turns)
            );
            if turns >= WORTH {
                let waits = format!("{} against {}", us(fast.wait.max_us), us(fair.wait.max_us));
                let why = "because tasks of one client pass the lock on among themselves";
                (
                    "fast for throughput, fair for order",
                    format!("{compared}, {why}; the longest wait: {waits}"),
                )
            } else {
                (
                    "fair",
                    format!("{compared}: fast gives up the order and serves no more"),
                )
            }
        }
    };
    Some(advice(
        format!("Fair or fast, on {}", m.label),
        choice,
        &why,
    ))
}

/// The reason gets a capital and a full stop.
fn advice(need: impl Into<String>, choice: impl Into<String>, why: &str) -> Advice {
    let mut letters = why.chars();
    let why = letters.next().map_or_else(String::new, |first| {
        format!("{}{}.", first.to_uppercase(), letters.as_str())
    });
    Advice {
        need: need.into(),
        choice: choice.into(),
        why,
    }
}

/// All of them, as a list in a sentence.
pub(crate) fn list(words: &[&str]) -> String {
    joined(words, "and")
}

fn joined<T: AsRef<str>>(words: &[T], last_word: &str) -> String {
    let words: Vec<&str> = words.iter().map(AsRef::as_ref).collect();
    match &words[..] {
        [most @ .., last] if !most.is_empty() => format!("{} {last_word} {last}", most.join(", ")),
        one => one.concat(),
    }
}
