//! Workloads: the tensors that a worker pulls and pushes in one step, by name, type and shape. Five are built in, others come from
//! JSON files. Plain data, bounded by the limits below.

use std::collections::HashSet;
use std::path::Path;
use std::sync::Arc;

use sealane_fusion::{DType, TensorMeta};
use sealane_transport::limits::KEY_BYTES_MAX;
use serde::Deserialize;

use crate::Failure;
use crate::files::read_text;

/// Largest workload file: ten times the file of a model with 65,536 tensors.
const FILE_BYTES_MAX: u64 = 64 << 20;
/// Most tensors in one direction: more than any published model has variables.
const TENSORS_MAX: usize = 65_536;

/// Largest tensor of a workload: what an engine accepts by default.
const TENSOR_BYTES_MAX: u64 = 4 << 30;

/// The type of a tensor if the file names none.
const DTYPE_DEFAULT: DType = DType::F32;

/// The types that a workload may name; their displayed names are used in files.
const DTYPES: [DType; 15] = [
    DType::F16,
    DType::BF16,
    DType::F32,
    DType::F64,
    DType::I8,
    DType::I16,
    DType::I32,
    DType::I64,
    DType::U8,
    DType::U16,
    DType::U32,
    DType::U64,
    DType::BOOL,
    DType::C64,
    DType::C128,
];

/// The workloads that come with the program.
const BUILT_IN: [(&str, &str); 5] = [
    ("resnet50", include_str!("../workloads/resnet50.json")),
    ("mobilenet_v2", include_str!("../workloads/mobilenet_v2.json")),
    ("vgg16", include_str!("../workloads/vgg16.json")),
    ("wide_deep_400", include_str!("../workloads/wide_deep_400.json")),
    ("dlrm_kaggle", include_str!("../workloads/dlrm_kaggle.json")),
];

/// What one worker moves in one step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Workload {
    pub name: String,
    /// The parameters that a worker pulls.
    pub pull: Vec<TensorSpec>,
    /// The gradients that a worker pushes.
    pub push: Vec<TensorSpec>,
    /// The tables that it names rows of, if the file lists them.
    pub tables: Option<Embeddings>,
}

/// Embedding tables of which a worker pulls rows: the rows of each are a tensor whose name ends in `/rows`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Embeddings {
    /// Number of rows of each table.
    pub rows: Vec<u64>,
    /// Elements of a row.
    pub dim: u64,
    /// Rows of each table that a worker names in a step, if the file says so.
    pub batch: Option<usize>,
}

/// The contents of a workload file. Fields not needed here are allowed.
#[derive(Deserialize)]
struct WorkloadFile {
    name: Option<String>,
    dtype: Option<String>,
    tensors: Option<Vec<TensorEntry>>,
    pull: Option<Vec<TensorEntry>>,
    push: Option<Vec<TensorEntry>>,
    table_rows: Option<Vec<u64>>,
    embedding_dim: Option<u64>,
    batch: Option<usize>,
}

impl Workload {
    /// The text of the workload called `name`: a built-in one or, if the name ends in `.json`, a file's.
    ///
    /// # Errors
    /// There is no such workload, or its file cannot be read.
    pub fn text(name: &str) -> Result<String, Failure> {
        if let Some((_, text)) = BUILT_IN.iter().find(|(built_in, _)| *built_in == name) {
            return Ok((*text).to_owned());
        }
        let path = Path::new(name);
        if path.extension().is_none_or(|extension| extension != "json") {
            let known = BUILT_IN.map(|(name, _)| name).join(", ");
            return Err(Failure::input(format!(
                "there is no workload {name}; name {known}, or a file that ends in .json"
            )));
        }
        read_text(path, FILE_BYTES_MAX).map_err(|error| {
            let remedy = format!("name a JSON file that describes at most {TENSORS_MAX} tensors each way");
            Failure::file(path, format!("cannot be read ({error}); {remedy}"))
        })
    }

    /// Reads a workload; `place` is the file's or the workload's name, for errors.
    ///
    /// # Errors
    /// The text is not JSON, or describes tensors that cannot be moved.
    pub fn parse(text: &str, place: &str) -> Result<Workload, Failure> {
        let wrong = |problem: String| Failure::input(format!("{place}: {problem}"));
        let file: WorkloadFile = serde_json::from_str(text).map_err(|error| {
            wrong(format!("{error}; write an object with a list \"tensors\", or with lists \"pull\" and \"push\""))
        })?;
        let dtype = file.dtype.as_deref();
        let read = |list: &'static str, entries: Vec<TensorEntry>| specs(list, entries, dtype).map_err(wrong);
        let (pull, push) = match (file.tensors, file.pull, file.push) {
            (Some(tensors), None, None) => {
                let pull = read("tensors", tensors)?;
                (pull.clone(), pull)
            }
            (None, Some(pull), Some(push)) => (read("pull", pull)?, read("push", push)?),
            _ => {
                let problem = "the tensors are missing or given twice; write either \"tensors\", which are pulled and \
                               pushed, or both \"pull\" and \"push\"";
                return Err(wrong(problem.to_owned()));
            }
        };
        let stem = || Path::new(place).file_stem().map_or(place.into(), |stem| stem.to_string_lossy());
        let tables = match (file.table_rows, file.embedding_dim) {
            (None, _) => None,
            (Some(rows), Some(dim)) => {
                let batches = pull.iter().filter(|spec| spec.is_batch_of_rows()).count();
                if batches != rows.len() {
                    let (listed, named) = (rows.len(), "pulled tensors whose names end in /rows");
                    return Err(wrong(format!(
                        "\"table_rows\" lists {listed} tables, and there are {batches} {named}"
                    )));
                }
                Some(Embeddings { rows, dim, batch: file.batch })
            }
            (Some(_), None) => return Err(wrong("\"table_rows\" needs \"embedding_dim\" beside it".to_owned())),
        };
        Ok(Workload { name: file.name.unwrap_or_else(|| stem().into_owned()), pull, push, tables })
    }

    /// Bytes that a worker pulls in a step.
    pub fn pull_bytes(&self) -> u64 {
        self.pull.iter().map(TensorSpec::bytes).sum()
    }

    /// Bytes that a worker pushes in a step.
    pub fn push_bytes(&self) -> u64 {
        self.push.iter().map(TensorSpec::bytes).sum()
    }
}

fn specs(list: &str, entries: Vec<TensorEntry>, dtype: Option<&str>) -> Result<Vec<TensorSpec>, String> {
    if entries.is_empty() || entries.len() > TENSORS_MAX {
        return Err(format!("\"{list}\" has {} tensors; 1 to {TENSORS_MAX} are accepted", entries.len()));
    }
    let specs: Vec<_> = entries.into_iter().map(|entry| TensorSpec::of(entry, dtype)).collect::<Result<_, String>>()?;
    let mut names = HashSet::new();
    match specs.iter().find(|spec| !names.insert(spec.name())) {
        Some(twice) => Err(format!("\"{list}\" has two tensors named {}; name each once", twice.name())),
        None => Ok(specs),
    }
}

/// A tensor as a workload file describes it.
#[derive(Deserialize)]
struct TensorEntry {
    name: String,
    shape: Vec<u64>,
    dtype: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorSpec {
    name: Arc<str>,
    meta: TensorMeta,
    bytes: u64,
}

impl TensorSpec {
    fn of(entry: TensorEntry, dtype: Option<&str>) -> Result<TensorSpec, String> {
        let TensorEntry { name, shape, dtype: own } = entry;
        if name.is_empty() || name.len() > KEY_BYTES_MAX {
            return Err(format!("a tensor's name has {} bytes; 1 to {KEY_BYTES_MAX} are accepted", name.len()));
        }
        let dtype = match own.as_deref().or(dtype) {
            None => DTYPE_DEFAULT,
            Some(text) => dtype_named(text).ok_or_else(|| {
                let known = DTYPES.map(|dtype| dtype.to_string()).join(", ");
                format!("tensor {name} has dtype {text}; write one of {known}")
            })?,
        };
        let meta = TensorMeta::new(dtype, &shape).map_err(|error| format!("tensor {name} is invalid: {error}"))?;
        match dtype.bytes_of(meta.element_count()) {
            Some(bytes) if bytes <= TENSOR_BYTES_MAX => Ok(TensorSpec { name: name.into(), meta, bytes }),
            _ => Err(format!("tensor {name} of shape {shape:?} has more than {TENSOR_BYTES_MAX} bytes; split it")),
        }
    }

    /// Its name, which is also its key.
    pub fn name(&self) -> &Arc<str> {
        &self.name
    }

    pub fn meta(&self) -> &TensorMeta {
        &self.meta
    }

    /// Whether it holds the rows of a table that a batch names.
    pub fn is_batch_of_rows(&self) -> bool {
        self.name.ends_with("/rows")
    }

    pub fn dtype(&self) -> DType {
        self.meta.dtype()
    }

    pub fn bytes(&self) -> u64 {
        self.bytes
    }
}

fn dtype_named(text: &str) -> Option<DType> {
    DTYPES.into_iter().find(|dtype| dtype.to_string() == text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn problem(text: &str) -> String {
        Workload::parse(text, "my.json").unwrap_err().to_string()
    }

    #[test]
    fn every_workload_that_comes_with_the_program_can_be_read() {
        let expected = [
            ("resnet50", 214, 102_334_368, 214, 102_334_368),
            ("mobilenet_v2", 158, 14_019_488, 158, 14_019_488),
            ("vgg16", 32, 553_430_176, 32, 553_430_176),
            ("wide_deep_400", 406, 3_508_772, 406, 3_508_772),
        ];
        for (name, pulled, pull_bytes, pushed, push_bytes) in expected {
            let workload = Workload::parse(&Workload::text(name).unwrap(), name).unwrap();
            assert_eq!(workload.name, name);
            assert_eq!((workload.pull.len(), workload.pull_bytes()), (pulled, pull_bytes), "{name}");
            assert_eq!((workload.push.len(), workload.push_bytes()), (pushed, push_bytes), "{name}");
        }
        let dlrm = Workload::parse(&Workload::text("dlrm_kaggle").unwrap(), "dlrm_kaggle").unwrap();
        assert_eq!((dlrm.pull.len(), dlrm.push.len()), (40, 66));
        assert!(dlrm.push.iter().any(|spec| spec.dtype() != DType::F32));
        let tables = dlrm.tables.unwrap();
        assert_eq!((tables.rows.len(), tables.dim, tables.batch), (26, 16, Some(128)));
    }

    #[test]
    fn a_name_is_a_workload_or_a_json_file() {
        let unknown = Workload::text("resnet51").unwrap_err().to_string();
        assert!(unknown.starts_with("there is no workload resnet51; name resnet50, mobilenet_v2, "), "{unknown}");
        let missing = Workload::text("none/of.json").unwrap_err().to_string();
        assert!(missing.starts_with("none/of.json: cannot be read ("), "{missing}");
    }

    #[test]
    fn a_workload_needs_no_name_of_its_own() {
        let workload = Workload::parse(r#"{"tensors":[{"name":"a","shape":[]}]}"#, "dir/my.json").unwrap();
        assert_eq!((workload.name.as_str(), workload.pull_bytes()), ("my", 4));
        assert_eq!(workload.pull, workload.push);
    }

    #[test]
    fn what_is_wrong_is_said_with_its_place() {
        assert!(problem("{\"tensors\": [").starts_with("my.json: EOF while parsing a list at line 1 column 13; "));
        assert!(problem("{}").starts_with("my.json: the tensors are missing or given twice; "));
        assert!(problem(r#"{"pull":[]}"#).starts_with("my.json: the tensors are missing or given twice; "));
        assert_eq!(problem(r#"{"tensors":[]}"#), "my.json: \"tensors\" has 0 tensors; 1 to 65536 are accepted");
        let twice = r#"{"tensors":[{"name":"a","shape":[1]},{"name":"a","shape":[1]}]}"#;
        assert_eq!(problem(twice), "my.json: \"tensors\" has two tensors named a; name each once");
        let tables = r#"{"table_rows":[7],"embedding_dim":16,"tensors":[{"name":"a","shape":[1]}]}"#;
        let expected =
            "my.json: \"table_rows\" lists 1 tables, and there are 0 pulled tensors whose names end in /rows";
        assert_eq!(problem(tables), expected);
        let tables = r#"{"table_rows":[7],"tensors":[{"name":"a/rows","shape":[1]}]}"#;
        assert_eq!(problem(tables), "my.json: \"table_rows\" needs \"embedding_dim\" beside it");
        let dtype = r#"{"dtype":"f31","tensors":[{"name":"a","shape":[1]}]}"#;
        assert!(problem(dtype).starts_with("my.json: tensor a has dtype f31; "), "{}", problem(dtype));
    }

    #[test]
    fn a_file_that_is_too_large_is_not_read_whole() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("large.json");
        std::fs::File::create(&path).unwrap().set_len(FILE_BYTES_MAX + 1).unwrap();
        let error = Workload::text(path.to_str().unwrap()).unwrap_err().to_string();
        assert!(error.contains("cannot be read (it is larger than 67108864 bytes); "), "{error}");
    }

    proptest! {
        #[test]
        fn any_text_is_checked_without_panic(text in r#"[\{\}\[\]":,a-z0-9]{0,80}"#) {
            let _ = Workload::parse(&text, "any");
        }

        #[test]
        fn any_shape_is_checked_without_panic(shape in proptest::collection::vec(any::<u64>(), 0..5)) {
            let shape = format!("{shape:?}");
            let _ = Workload::parse(&format!(r#"{{"tensors":[{{"name":"a","shape":{shape}}}]}}"#), "any");
        }
    }

    fn spec(name: &str, shape: &[u64], own: Option<&str>, common: Option<&str>) -> Result<TensorSpec, String> {
        let entry = TensorEntry { name: name.into(), shape: shape.into(), dtype: own.map(str::to_owned) };
        TensorSpec::of(entry, common)
    }

    #[test]
    fn the_nearest_dtype_counts() {
        assert_eq!(spec("a", &[3], None, None).unwrap().dtype(), DType::F32);
        assert_eq!(spec("a", &[3], None, Some("f16")).unwrap().bytes(), 6);
        assert_eq!(spec("a", &[3], Some("i64"), Some("f16")).unwrap().bytes(), 24);
        for dtype in DTYPES {
            assert_eq!(dtype_named(&dtype.to_string()), Some(dtype));
        }
    }

    #[test]
    fn names_and_sizes_have_limits() {
        assert!(spec("", &[], None, None).unwrap_err().starts_with("a tensor's name has 0 bytes; "));
        assert!(spec(&"x".repeat(KEY_BYTES_MAX + 1), &[], None, None).is_err());
        assert_eq!(spec("a", &[1 << 30], None, None).unwrap().bytes(), TENSOR_BYTES_MAX);
        assert!(spec("a", &[(1 << 30) + 1], None, None).unwrap_err().ends_with("; split it"));
        assert!(spec("a", &[1 << 40, 1 << 40], None, None).unwrap_err().starts_with("tensor a is invalid: "));
        assert_eq!(spec("a", &[1 << 40, 0], None, None).unwrap().bytes(), 0);
    }
}
