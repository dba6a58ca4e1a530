"""From nets to OpenVINO IR files."""
