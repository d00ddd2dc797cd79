//! What several rounds say together.

use serde::{Deserialize, Serialize};

/// The median of the rounds, and their range.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub struct Spread {
    pub median: f64,
    pub least: f64,
    pub most: f64,
    pub rounds: usize,
}

impl Spread {
    /// `None`: nothing was measured.
    pub fn of(values: impl IntoIterator<Item = f64>) -> Option<Spread> {
        let mut values: Vec<f64> = values
            .into_iter()
            .filter(|value| value.is_finite())
            .collect();
        values.sort_by(f64::total_cmp);
        let (least, most) = (*values.first()?, *values.last()?);
        Some(Spread {
            median: median(&values),
            least,
            most,
            rounds: values.len(),
        })
    }

    /// Of the inverse values.
    pub fn inverse(self) -> Spread {
        Spread {
            median: 1.0 / self.median,
            least: 1.0 / self.most,
            most: 1.0 / self.least,
            ..self
        }
    }

    /// As a ratio to itself is.
    pub fn is_one(&self) -> bool {
        (self.least, self.most) == (1.0, 1.0)
    }
}

/// Of values in their order; the mean of both where two are in the middle.
pub fn median(sorted: &[f64]) -> f64 {
    let (a, b) = (sorted[(sorted.len() - 1) / 2], sorted[sorted.len() / 2]);
    (a + b) / 2.0
}
