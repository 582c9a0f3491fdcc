//! `cargo xtask licences`: every dependency, that of the fuzz targets included, has a licence that `deny.toml` allows.

use std::fs;

use serde_json::Value;
use spdx::{Expression, Licensee, ParseMode};

use crate::Outcome;
use crate::build::workspace;
use crate::command::{cargo, output};

pub(crate) fn run() -> Outcome {
    let path = workspace().join("deny.toml");
    let text = fs::read_to_string(&path).map_err(|error| format!("{}: {error}", path.display()))?;
    let policy: toml::Table = toml::from_str(&text).map_err(|error| format!("{}: {error}", path.display()))?;
    let allowed =
        allowed(policy["licenses"]["allow"].as_array().into_iter().flatten().filter_map(|name| name.as_str()))?;
    let mut count = 0;
    let mut refused = Vec::new();
    for manifest in ["Cargo.toml", "tests/fuzz/Cargo.toml"] {
        for package in dependencies(manifest)? {
            count += 1;
            let [name, version, license] = ["name", "version", "license"].map(|field| package[field].as_str());
            let problem = problem(license, &allowed);
            refused
                .extend(problem.map(|problem| format!("{} {} {problem}", name.unwrap_or("?"), version.unwrap_or("?"))));
        }
    }
    if !refused.is_empty() {
        return Err(refused.join("\n       "));
    }
    println!("{count} dependencies, each with a licence that deny.toml allows");
    Ok(true)
}

fn allowed<'a>(names: impl Iterator<Item = &'a str>) -> Result<Vec<Licensee>, String> {
    names.map(|name| Licensee::parse(name).map_err(|error| format!("deny.toml: {name}: {error}"))).collect()
}

/// What cargo says of the crates that are not our own.
fn dependencies(manifest: &str) -> Result<Vec<Value>, String> {
    let mut cargo = cargo();
    cargo.args(["metadata", "--format-version", "1", "--all-features", "--locked", "--manifest-path"]);
    let said = output(cargo.arg(workspace().join(manifest)))?;
    let metadata: Value = serde_json::from_str(&said).map_err(|error| format!("cargo metadata: {error}"))?;
    let packages = metadata["packages"].as_array().ok_or("cargo metadata names no packages")?;
    Ok(packages.iter().filter(|package| !package["source"].is_null()).cloned().collect())
}

/// Why a package of that licence may not be depended on.
fn problem(license: Option<&str>, allowed: &[Licensee]) -> Option<String> {
    let Some(license) = license else { return Some("names no licence".to_owned()) };
    match Expression::parse_mode(license, ParseMode::LAX) {
        Err(error) => Some(format!("has the licence {license}: {error}")),
        Ok(expression) if expression.evaluate(|wanted| allowed.iter().any(|licence| licence.satisfies(wanted))) => None,
        Ok(_) => Some(format!("has the licence {license}, which deny.toml does not allow")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_licence_is_allowed_if_one_way_to_take_it_is() {
        let allowed = allowed(["MIT", "ISC", "MPL-2.0"].into_iter()).unwrap();
        for good in ["MIT", "MIT/Apache-2.0", "GPL-3.0 OR MIT", "MIT AND ISC", "MPL-2.0+"] {
            assert_eq!(problem(Some(good), &allowed), None, "{good}");
        }
        for bad in [Some("GPL-3.0"), Some("MIT AND GPL-3.0"), Some("Apache-2.0"), Some("no such thing"), None] {
            assert!(problem(bad, &allowed).is_some(), "{bad:?}");
        }
    }
}
