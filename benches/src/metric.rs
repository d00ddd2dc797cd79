//! What is measured of an operation, and how it is written.

use leasehold_lab::measure::units::scaled;
use serde::{Deserialize, Serialize};

pub use leasehold_lab::measure::units::digits;

/// What a figure says; of most, for each operation.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Metric {
    /// The median of how long one took.
    Median,
    /// The time of the window by the operations in it: the inverse of the rate.
    Time,
    /// The window by the turns that began in it: what `Time` is where those who stop are not waited for.
    Turn,
    /// From the beginning of a release to the next holder: the median.
    Gap,
    ClientCpu,
    ServerCpu,
    /// The server's, for each lock that is renewed once.
    RenewalCpu,
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
    /// What the kernel was asked.
    SystemCalls,
    /// Jain's index of the turns of each: 1 if all got the same.
    Jain,
    /// What the unluckiest got of an equal share.
    LeastShare,
    LongestWait,
    /// Live on the client's heap for each lock or waiter.
    Heap,
    /// Until all of them held, or stood in line.
    SetUp,
    /// Keys, nodes or rows that the store has for each name that was used and is free.
    KeysLeft,
    /// The same after a while.
    KeysLater,
    /// Until the store has as many as before.
    AsBefore,
    /// By so much did the live heap and the memory of the process grow.
    HeapGrowth,
    MemoryGrowth,
    /// Of the program.
    FileSize,
}

impl Metric {
    pub fn title(self) -> &'static str {
        match self {
            Metric::Median => "time, median",
            Metric::Time => "time ÷ operations",
            Metric::Turn => "window ÷ turns in it",
            Metric::Gap => "gap, median",
            Metric::ClientCpu => "client CPU",
            Metric::ServerCpu => "server CPU",
            Metric::RenewalCpu => "server CPU of a renewal",
            Metric::Requests => "requests",
            Metric::Calls => "calls in the server",
            Metric::Bytes => "bytes on the wire",
            Metric::Parks => "threads put to sleep",
            Metric::Allocations => "allocations",
            Metric::Allocated => "bytes allocated",
            Metric::SystemCalls => "system calls",
            Metric::Jain => "Jain's index",
            Metric::LeastShare => "least share",
            Metric::LongestWait => "longest wait",
            Metric::Heap => "heap for each",
            Metric::SetUp => "time to set up",
            Metric::KeysLeft => "keys left",
            Metric::AsBefore => "until as before",
            Metric::KeysLater => "keys left after 60 s",
            Metric::HeapGrowth => "growth of the heap",
            Metric::MemoryGrowth => "growth of the process",
            Metric::FileSize => "size of the program",
        }
    }

    /// Whether its inverse is a rate.
    pub fn is_a_pace(self) -> bool {
        matches!(self, Metric::Time | Metric::Turn)
    }

    /// Whether only its ratio says anything: the figure is the machine's.
    pub fn is_compared(self) -> bool {
        use Metric::*;
        matches!(
            self,
            Median | Time | Turn | Gap | ClientCpu | ServerCpu | SystemCalls
        )
    }

    /// A figure as people read it.
    pub fn shown(self, value: f64) -> String {
        use Metric::*;
        match self {
            Requests | Calls | Parks | Allocations | SystemCalls | Jain | LeastShare | KeysLeft
            | KeysLater => digits(value),
            Bytes | Allocated | Heap | HeapGrowth | MemoryGrowth | FileSize => {
                scaled(value, &["B", "kB", "MB", "GB"])
            }
            _ => scaled(value, &["ns", "µs", "ms", "s"]),
        }
    }
}
