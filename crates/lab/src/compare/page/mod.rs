//! One HTML page that needs nothing else: what the numbers say, the plots, all numbers, and how they were got.

mod fairness;
mod marks;
mod recovery;
mod ridges;
mod throughput;

use std::time::{Duration, SystemTime};

use humantime::format_rfc3339_seconds;
use maud::{DOCTYPE, Markup, PreEscaped, html};

use crate::compare::advice::list;
use crate::compare::report::{Measured, Report, sizes};
use crate::compare::table;
use crate::measure::units::{ms, us};
use crate::plot::{self, COLOURS};

const STYLE: &str = include_str!("style.css");

impl Report {
    /// The report as one HTML page: no scripts, nothing to load, readable on a phone and in print, light and dark.
    pub fn page(&self) -> String {
        let names: Vec<&str> = self.stores.iter().map(|m| &*m.label).collect();
        let title = format!("Locks on {}, compared", list(&names));
        let date =
            format_rfc3339_seconds(SystemTime::UNIX_EPOCH + Duration::from_secs(self.unix_time));
        let page = html! {
            (DOCTYPE)
            html lang="en" {
                head {
                    meta charset="utf-8";
                    meta name="viewport" content="width=device-width, initial-scale=1";
                    meta name="color-scheme" content="light dark";
                    title { (title) }
                    style { (PreEscaped(plot::STYLE)) (PreEscaped(STYLE)) }
                }
                body { main {
                    header {
                        p.kicker { "leasehold compare " (self.version) }
                        h1 { (title) }
                        p.when { (date) " · " (self.processors) " processors · "
                            @for (i, m) in self.stores.iter().enumerate() {
                                @if i > 0 { ", " }
                                span class={"name c" (i % COLOURS)} { (m.label) } " at " code { (m.address) }
                            }
                        }
                    }
                    @if self.settings.glance {
                        p.warning { "Only a glance (" code { "--glance" } "): each workload ran once, and briefly. These numbers show that it works, and measure little." }
                    }
                    @for store in &self.unreachable { p.warning { "Not compared: " code { (store.address) } ": " (store.error) } }
                    (alarms(&self.stores))
                    (self.advice())
                    (self.plots())
                    (self.numbers())
                    (self.how())
                } }
            }
        };
        page.into_string()
    }

    fn advice(&self) -> Markup {
        html! {
            section {
                h2 { "What suits what" }
                dl.advice {
                    @for advice in &self.advice {
                        div {
                            dt { (advice.need) }
                            dd { strong { (advice.choice) } p { (advice.why) } }
                        }
                    }
                }
            }
        }
    }

    fn plots(&self) -> Markup {
        let stores = &self.stores;
        html! {
            section.pictures {
                h2 { "The plots" }
                p.legend {
                    span.key { (swatch("key-fair")) "fair" }
                    span.key { (swatch("key-fast")) "fast" }
                    span.key { (swatch("key-trip")) "the store’s own round trip" }
                }
                div.plots {
                    figure {
                        h3 { "Acquire and release, without contention" }
                        (ridges::alone(stores))
                        figcaption { "How long one client needs for both while no other client wants the lock. The numbers are medians; a hill shows the distribution; further left is better." }
                    }
                    @if let Some(waiters) = middle(stores) {
                        figure {
                            h3 { "Hand-over, " (waiters) " waiters" }
                            (ridges::hand_over(stores, waiters))
                            figcaption { "From the begin of a release until the next waiter knows that it holds." }
                        }
                    }
                    @if stores.iter().any(|m| m.recovery.is_some()) {
                        figure {
                            h3 { "After a holder was killed" }
                            (recovery::plot(stores))
                            figcaption { "The bar is the lease that the store granted; each mark is the time from one kill to the next grant. After a holder that had just renewed, a whole lease has to pass." }
                        }
                    }
                    figure {
                        h3 { "Turns in a second, against waiters" }
                        (throughput::plot(stores))
                        figcaption { "How often the lock is acquired in a second when nothing is done inside. Higher is better; both axes are logarithmic." }
                    }
                    figure {
                        h3 { "The longest wait" }
                        (fairness::plot(stores))
                        figcaption { "Dots are the longest wait of any waiter; the vertical line is what it takes to serve each waiter once in fair order, which is the longest wait in a perfect queue. On the right Jain’s index: 1.00 means that all got the same number of turns." }
                    }
                }
            }
        }
    }

    fn numbers(&self) -> Markup {
        html! {
            section {
                h2 { "All numbers" }
                div.wide {
                    table {
                        thead { tr {
                            td {}
                            @for (i, m) in self.stores.iter().enumerate() { th scope="col" class={"c" (i % COLOURS)} { (m.label) } }
                        } }
                        @for group in table::groups(&self.stores) {
                            tbody {
                                tr.group { th colspan=(self.stores.len() + 1) scope="rowgroup" { (group.title) } }
                                @for row in &group.rows {
                                    tr {
                                        th scope="row" { (row.title) }
                                        @for cell in &row.cells { td { (cell) } }
                                    }
                                }
                            }
                        }
                    }
                }
                @for m in &self.stores {
                    h3 { "What " (m.label) " says of itself" }
                    p { (m.promises.notes()) }
                }
            }
        }
    }

    fn how(&self) -> Markup {
        let settings = &self.settings;
        html! {
            section {
                h2 { "How it was measured" }
                p { "Every store did the same work in one run of one program. Absolute numbers say as much about the machine, and about what else it did, as about the store; so compare stores, and look at the ratios: each is to the store’s own round trip, measured just before." }
                ul {
                    li { strong { "Round trip. " } "An " code { "inspect" } " of a name that is not in use: the cheapest request that each store answers, over the same client. A store that must write in order to lock, and agree on it with others, needs more than this." }
                    li { strong { "Alone. " } "One client acquires and releases one lock for " (us(settings.alone.as_secs_f64() * 1e6)) "." }
                    li { strong { "Waiters. " } "Spread over up to " (settings.clients) " clients with connections of their own, as so many processes would be. Each acquires the lock, does nothing, releases it, and asks again, for " (us(settings.contended.as_secs_f64() * 1e6)) ". Inside is a flag that would show two at once." }
                    li { strong { "Many locks. " } (settings.locks) " held by one client for two leases. Processor time is this process’s, without the server’s." }
                    li { strong { "Killed holders. " } @if settings.kills == 1 { "1 holder, with a waiter, killed between two renewals" }
                        @else { (settings.kills) " holders, each with a waiter, killed at different points between two renewals" }
                        @if self.stores.iter().filter_map(|m| m.recovery.as_ref()).any(|r| r.killed == "client") { "; where no other process can hold the lock, a client whose runtime is shut down" }
                        "." }
                }
                @for m in &self.stores {
                    @for failure in &m.failures { p.warning { "Not measured on " (m.label) ": " (failure.workload) ": " (failure.error) } }
                }
            }
        }
    }
}

/// Lists events that must not have happened.
fn alarms(stores: &[Measured]) -> Markup {
    html! {
        @for m in stores {
            @let overlaps: usize = m.contended.iter().map(|c| c.overlaps).sum();
            @if overlaps > 0 { p.warning { "On " (m.label) ", two were inside of the lock at once, " (overlaps) " times." } }
            @if let Some(renewal) = m.renewal.as_ref().filter(|renewal| renewal.lost > 0) {
                p.warning { "On " (m.label) ", " (renewal.lost) " of " (renewal.locks) " locks were lost while they were renewed, on a lease of " (ms(renewal.lease_ms)) "." }
            }
        }
    }
}

fn swatch(class: &str) -> Markup {
    html! {
        svg class={"swatch " (class)} viewBox="0 0 26 12" aria-hidden="true" {
            @if class == "key-trip" { path d="M13 2 L17.5 10 L8.5 10 Z" {} }
            @else { line x1="1" x2="25" y1="6" y2="6" {} circle cx="13" cy="6" r="3.4" {} }
        }
    }
}

/// The number of waiters in the middle of those that were measured.
fn middle(stores: &[Measured]) -> Option<usize> {
    let sizes = sizes(stores);
    sizes.iter().nth(sizes.len() / 2).copied()
}
