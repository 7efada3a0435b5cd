"""Optional dependencies: the command that installs one."""

# The name on the package index, where `cascades` is another project.
DISTRIBUTION = 'speculative-cascades'


def missing(option: str, package: str, extra: str) -> str:
  """Returns the error message for a dependency that is not installed.

  Args:
    option: The option or module that needs the dependency.
    package: The dependency, as a reader knows it.
    extra: The optional extra of this distribution that installs it.
  """
  return (
    f'{option}: {package} is not installed; run pip install'
    f" '{DISTRIBUTION}[{extra}]'."
  )
