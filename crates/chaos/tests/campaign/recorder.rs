//! What a process of the campaign writes its part of the history with.

use std::path::Path;

use leasehold::backend::Moment;
use leasehold_chaos::{Recorder, What};

/// The recorder of one process, by the clock that all of them share.
pub(crate) struct Record(Recorder);

impl Record {
    pub(crate) fn new(folder: &Path, p: u64) -> Record {
        Record(Recorder::new(folder, p).unwrap())
    }

    /// It happened now.
    pub(crate) fn now(&self, what: What) {
        self.at(now(), what);
    }

    /// It happened at `t`, or after it.
    pub(crate) fn at(&self, t: u64, what: What) {
        self.0.write(t, what).unwrap();
    }
}

pub(crate) fn now() -> u64 {
    Moment::now().as_nanos()
}
