//! Checks a peer's identity: its certificate must cover every task that it names, and every task that this side's endpoint map
//! lists at its transport address.

use sealane_transport::authentication::Certificate;
use sealane_transport::endpoint_map::{EndpointMap, TaskName, TransportAddress};

/// Checks the tasks that a peer at `address` claims to serve. Without a certificate there is nothing to check: either all share one secret,
/// or no authentication is required.
///
/// # Errors
/// The task that its certificate does not cover.
pub(super) fn check(
    certificate: Option<&Certificate>,
    address: &TransportAddress,
    tasks: &[String],
    map: &EndpointMap,
) -> Result<(), String> {
    let Some(certificate) = certificate else { return Ok(()) };
    let may_not = |task: &dyn std::fmt::Display| {
        let names = certificate.names();
        format!(
            "its certificate ({names}) does not cover task {task} at {address}: it needs the task's host, or \
             sealane://{task}, among its names"
        )
    };
    for task in tasks {
        let speaks = task.parse::<TaskName>().is_ok_and(|task| certificate.speaks_for(&task));
        if !speaks {
            return Err(may_not(task));
        }
    }
    match map.tasks_at(address).find(|task| !certificate.speaks_for(task)) {
        Some(task) => Err(may_not(task)),
        None => Ok(()),
    }
}
