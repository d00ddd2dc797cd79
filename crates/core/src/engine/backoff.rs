//! The delay before a request is repeated. Pure arithmetic with injected randomness.
//!
//! Clients that fail together retry together, and a store that comes back is hit by all of them at
//! once. Therefore each delay is drawn between half of a step and the whole of it. The randomness
//! is injected, so that tests repeat.

use std::time::Duration;

/// Exponential backoff with full jitter between half and the whole of each step.
pub(crate) struct Backoff {
    step: Duration,
    random: fastrand::Rng,
}

/// The longest step.
const CAP: Duration = Duration::from_secs(1);

impl Backoff {
    pub(crate) fn new(random: fastrand::Rng) -> Backoff {
        Backoff {
            step: Duration::from_millis(20),
            random,
        }
    }

    pub(crate) fn next(&mut self) -> Duration {
        let step = self.step;
        self.step = (step * 2).min(CAP);
        jittered(step, &mut self.random)
    }
}

/// Returns a random time between half of `d` and `d`.
pub(crate) fn jittered(d: Duration, random: &mut fastrand::Rng) -> Duration {
    d.mul_f64(0.5 + random.f64() / 2.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn doubles_up_to_the_cap_and_stays_within_the_jitter() {
        let ms = Duration::from_millis;
        let mut backoff = Backoff::new(fastrand::Rng::with_seed(7));
        for step in [20, 40, 80, 160, 320, 640, 1000, 1000] {
            let pause = backoff.next();
            assert!(
                ms(step / 2) <= pause && pause <= ms(step),
                "{pause:?} for a step of {step} ms"
            );
        }
    }
}
