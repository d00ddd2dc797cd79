//! A target that does not return says nothing: another thread says on which input.

use std::process::exit;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

/// For how long one input may be under way. A busy machine is slow, and servers answer some requests late; neither takes as long.
const LIMIT: Duration = Duration::from_secs(300);

/// The number of inputs so far, and the one under way.
type Now = Arc<Mutex<(u64, Vec<u8>)>>;

/// Watches one target for as long as it is there.
pub(crate) struct Watch {
    now: Now,
    _alive: Sender<()>,
}

impl Default for Watch {
    fn default() -> Watch {
        let (now, (alive, ended)) = (Now::default(), channel::<()>());
        let seen = now.clone();
        thread::spawn(move || {
            let mut last = u64::MAX;
            while ended.recv_timeout(LIMIT) == Err(RecvTimeoutError::Timeout) {
                let now = seen.lock().unwrap_or_else(PoisonError::into_inner);
                if now.0 == last {
                    hangs(&now.1);
                }
                last = now.0;
            }
        });
        Watch { now, _alive: alive }
    }
}

impl Watch {
    /// This input is under way.
    pub(crate) fn begins(&self, input: &[u8]) {
        let mut now = self.now.lock().unwrap_or_else(PoisonError::into_inner);
        now.0 += 1;
        now.1.clear();
        now.1.extend_from_slice(input);
    }
}

#[allow(clippy::print_stderr, reason = "the test can be ended in no other way")]
fn hangs(input: &[u8]) {
    eprintln!(
        "no answer to this line of the corpus within {LIMIT:?}: {}",
        input.escape_ascii()
    );
    exit(101);
}
