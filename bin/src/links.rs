//! The kinds of links of this program.

use sealane_transport::LinkKind;
use sealane_transport::provider::Figure;
use sealane_transport::verbs::{self, PortCounters};

/// The kinds of links besides TCP that this program knows, with the figures that each counts: shown whether or not an engine uses
/// them.
pub(crate) const KINDS: &[(LinkKind, &[Figure])] = &[(verbs::KIND, PortCounters::FIGURES)];
