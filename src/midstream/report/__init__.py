"""What people see: progress, tables, the HTML report."""
