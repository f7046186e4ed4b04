"""Reports of rewrites and of the whole process: decisions, reasons, figures; text and files."""
