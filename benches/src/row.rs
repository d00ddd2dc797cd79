//! A row of the table: a question that is put to several stores.

use std::sync::Arc;

use async_trait::async_trait;

use crate::metric::Metric;
use crate::plan::Plan;
use crate::rounds::Contender;
use crate::servers::{Server, Store};
use crate::subject::Result;

/// A question that is put to several stores.
#[async_trait]
pub trait Row: Sync {
    fn name(&self) -> &'static str;

    /// What is measured, and what the operation is.
    fn title(&self, plan: &Plan) -> String;

    fn stores(&self) -> &'static [Store];

    /// How often it is measured, and whether there is a round before to get warm.
    fn rounds(&self, plan: &Plan) -> (usize, bool) {
        (plan.rounds(), true)
    }

    /// What the row is about.
    fn heads(&self) -> &'static [Metric];

    /// What is shown of what was measured.
    fn shows(&self) -> &'static [Metric];

    /// Those who are measured in turn; the others are compared with the first.
    async fn contenders(&self, server: &Arc<Server>, plan: &Plan) -> Result<Vec<Contender>>;
}
