//! The standard loads: what one worker pulls in a step.

use serde_json::Value;

/// Tensors of one step.
#[derive(Debug)]
pub(super) struct Load {
    pub(super) name: &'static str,
    /// Key and size in bytes of each tensor.
    pub(super) tensors: Vec<(String, usize)>,
}

impl Load {
    pub(super) fn bytes(&self) -> usize {
        self.tensors.iter().map(|(_, bytes)| bytes).sum()
    }
}

/// A thousand small tensors, and two models: the loads of `sealane bench fuse --workload`.
pub(super) fn loads() -> [Load; 3] {
    [
        Load { name: "1000 x 64 B", tensors: (0..1000).map(|number| (format!("layer_{number}/kernel"), 64)).collect() },
        model("wide_deep_400", include_str!("../../../bin/workloads/wide_deep_400.json")),
        model("resnet50", include_str!("../../../bin/workloads/resnet50.json")),
    ]
}

/// # Panics
/// If the file, which comes with the program, describes other than 32-bit tensors.
fn model(name: &'static str, text: &str) -> Load {
    let model: Value = serde_json::from_str(text).expect("the program's own workload");
    assert_eq!(model["dtype"], "f32", "{name}");
    let tensor = |tensor: &Value| {
        let key = tensor["name"].as_str().expect("a name").to_owned();
        let dimensions = tensor["shape"].as_array().expect("a shape").iter();
        let elements: u64 = dimensions.map(|dimension| dimension.as_u64().expect("a dimension")).product();
        (key, elements as usize * size_of::<f32>())
    };
    Load { name, tensors: model["tensors"].as_array().expect("tensors").iter().map(tensor).collect() }
}
