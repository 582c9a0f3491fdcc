//! What a report says of the RDMA device that carried the tensors.

use sealane_transport::verbs::device::Attributes;
use serde::{Deserialize, Serialize};

/// An RDMA device, as the measured processes opened it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RdmaDevice {
    /// Its name.
    pub name: String,
    /// Its port.
    pub port: u8,
    /// Index of the port's GID.
    pub gid_index: u8,
    /// The path MTU, in bytes.
    pub mtu: u16,
}

impl From<&Attributes> for RdmaDevice {
    fn from(attributes: &Attributes) -> Self {
        let Attributes { device, port, gid_index, mtu, .. } = attributes;
        Self { name: device.clone(), port: *port, gid_index: *gid_index, mtu: *mtu }
    }
}
