//! What is measured of an operation, and how it is written.

use serde::Serialize;

/// What a figure says; of most, for each operation.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Metric {
    /// The median of how long one took.
    Median,
    /// The time of the window by the operations in it: the inverse of the rate.
    Time,
    /// From the beginning of a release to the next holder: the median.
    Gap,
    ClientCpu,
    ServerCpu,
    /// What clients asked the server.
    Requests,
    /// What the server executed for that, also inside of scripts.
    Calls,
    /// In both directions.
    Bytes,
    /// How often a thread of the client had nothing to do and slept.
    Parks,
    Allocations,
    Allocated,
    /// The share of the luckiest and the unluckiest: 1 if all got the same.
    Jain,
    LongestWait,
    /// Live on the client's heap for each lock or waiter.
    Heap,
    /// Until all of them held, or stood in line.
    SetUp,
}

impl Metric {
    pub fn title(self) -> &'static str {
        match self {
            Metric::Median => "time, median",
            Metric::Time => "time ÷ operations",
            Metric::Gap => "gap, median",
            Metric::ClientCpu => "client CPU",
            Metric::ServerCpu => "server CPU",
            Metric::Requests => "requests",
            Metric::Calls => "calls in the server",
            Metric::Bytes => "bytes on the wire",
            Metric::Parks => "threads put to sleep",
            Metric::Allocations => "allocations",
            Metric::Allocated => "bytes allocated",
            Metric::Jain => "Jain's index",
            Metric::LongestWait => "longest wait",
            Metric::Heap => "heap for each",
            Metric::SetUp => "time to set up",
        }
    }

    /// Whether only its ratio says anything: the figure is the machine's.
    pub fn is_compared(self) -> bool {
        use Metric::*;
        matches!(self, Median | Time | Gap | ClientCpu | ServerCpu)
    }

    /// A figure as people read it.
    pub fn shown(self, value: f64) -> String {
        match self {
            Metric::Requests | Metric::Calls | Metric::Parks | Metric::Allocations | Metric::Jain => digits(value),
            Metric::Bytes | Metric::Allocated | Metric::Heap => scaled(value, &["B", "kB", "MB", "GB"]),
            _ => scaled(value, &["ns", "µs", "ms", "s"]),
        }
    }
}

fn scaled(mut value: f64, units: &[&str]) -> String {
    let mut unit = 0;
    while value.abs() >= 1000.0 && unit + 1 < units.len() {
        value /= 1000.0;
        unit += 1;
    }
    format!("{} {}", digits(value), units[unit])
}

/// Three digits, as far as they matter.
pub fn digits(value: f64) -> String {
    match value.abs() {
        v if v >= 99.5 => format!("{value:.0}"),
        v if v >= 9.95 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}
