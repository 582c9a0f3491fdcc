//! Engines whose only link is verbs: their settings, and which device they have opened.

use std::sync::{Arc, OnceLock};

use sealane_transport::verbs::device::{Device, VerbsError};
use sealane_transport::verbs::{self, Verbs, VerbsSettings};

use crate::plan::Plan;
use crate::rdma_device::RdmaDevice;

/// The device of an engine, known once it has opened one.
pub(super) type Opened = Arc<OnceLock<RdmaDevice>>;

/// What an engine needs for the plan, with the system's device; `None` where the link is not verbs.
pub(super) fn settings(plan: &Plan) -> Option<(Verbs, Opened)> {
    with(plan, verbs::open)
}

/// The same with a device of the caller's.
pub(super) fn with(
    plan: &Plan,
    open: impl Fn(&VerbsSettings) -> Result<Box<dyn Device>, VerbsError> + Send + Sync + 'static,
) -> Option<(Verbs, Opened)> {
    let (transfer, registration) = plan.verbs()?;
    let opened = Opened::default();
    let noted = Arc::clone(&opened);
    let open_and_note = move |settings: &VerbsSettings| {
        let device = open(settings)?;
        noted.get_or_init(|| RdmaDevice::from(device.attributes()));
        Ok(device)
    };
    let settings =
        VerbsSettings { transfer: transfer.into(), registration: registration.into(), ..VerbsSettings::default() };
    Some((Verbs { is_required: true, open: Arc::new(open_and_note), ..Verbs::new(settings) }, opened))
}
