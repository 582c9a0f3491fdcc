//! Metrics in the text format of Prometheus (version 0.0.4), for readers that do not accept OpenMetrics, such as `promtool check metrics`.

use std::collections::HashMap;

pub(super) const MEDIA_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Rewrites a page of OpenMetrics. The samples are the same; a counter's family is named as its samples are, and `info` is a gauge.
pub(super) fn from_open_metrics(page: &str) -> String {
    let types = page.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split_once(' '));
    let types: HashMap<&str, &str> = types.collect();
    let mut text = String::with_capacity(page.len());
    for line in page.lines() {
        match line.strip_prefix("# ").map(|comment| comment.splitn(3, ' ').collect::<Vec<_>>()).as_deref() {
            None => text += line,
            Some(&[word @ ("HELP" | "TYPE"), family, about]) => {
                let kind = types.get(family).copied();
                let (suffix, kind) = match kind {
                    Some("counter") => ("_total", "counter"),
                    Some("info") => ("_info", "gauge"),
                    kind => ("", kind.unwrap_or("untyped")),
                };
                let about = if word == "TYPE" { kind } else { about };
                text += &format!("# {word} {family}{suffix} {about}");
            }
            // `# EOF` and units.
            Some(_) => continue,
        }
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn families_are_named_as_the_older_format_names_them() {
        let page = "# HELP a_build The program\n# TYPE a_build info\na_build_info{version=\"1\"} 1\n\
                    # HELP a_tensors Tensors # of them\n# TYPE a_tensors counter\na_tensors_total 3\n\
                    # TYPE a_used_bytes gauge\n# UNIT a_used_bytes bytes\na_used_bytes 4\n# EOF\n";
        assert_eq!(
            from_open_metrics(page),
            "# HELP a_build_info The program\n# TYPE a_build_info gauge\na_build_info{version=\"1\"} 1\n\
             # HELP a_tensors_total Tensors # of them\n# TYPE a_tensors_total counter\na_tensors_total 3\n\
             # TYPE a_used_bytes gauge\na_used_bytes 4\n"
        );
    }
}
